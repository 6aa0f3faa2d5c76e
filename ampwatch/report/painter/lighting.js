// What stands for one run is lit together, in the chart, the tables and the sweep, wherever it is
// pointed at; the rest of it is pale.

const NAME = "aw-light";

// A run's name, or null where nothing is pointed at any more.
export function light(name) {
  window.dispatchEvent(new CustomEvent(NAME, { detail: name }));
}

// Calls back with what is lit; returns what ends it.
export function onLight(act) {
  const heard = ({ detail }) => act(detail);
  window.addEventListener(NAME, heard);
  return () => window.removeEventListener(NAME, heard);
}
