// What the keys do while the chart has the focus.

const LEAP = 0.1; // of the view: Shift with an arrow, Page Up and Down
const ZOOM = 2;

// `chart` has a cursor: a step, or null.
export function onKey(event, chart) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const act = KEYS[event.key];
  if (!act || !chart.isDrawn) return;
  act(chart, event);
  event.preventDefault(); // nor does the page scroll
}

const KEYS = {
  ArrowLeft: (chart, { shiftKey }) => (shiftKey ? leap(chart, -1) : chart.moveCursor(chart.nextStep(-1))),
  ArrowRight: (chart, { shiftKey }) => (shiftKey ? leap(chart, 1) : chart.moveCursor(chart.nextStep(1))),
  PageUp: (chart) => leap(chart, -1),
  PageDown: (chart) => leap(chart, 1),
  Home: (chart) => chart.moveCursor(chart.shown[0]),
  End: (chart) => chart.moveCursor(chart.shown[1]),
  "+": (chart) => zoom(chart, 1 / ZOOM),
  "=": (chart) => zoom(chart, 1 / ZOOM),
  "-": (chart) => zoom(chart, ZOOM),
  _: (chart) => zoom(chart, ZOOM),
  Enter: (chart) => chart.pick(cursorOf(chart)),
  " ": (chart) => chart.pick(cursorOf(chart)),
  Escape: (chart) => chart.escape(),
};

function cursorOf({ cursor, shown: [first, last] }) {
  return cursor ?? Math.round((first + last) / 2);
}

function leap(chart, way) {
  const [first, last] = chart.shown;
  chart.moveCursor(cursorOf(chart) + way * Math.max(1, Math.round(LEAP * (last - first))));
}

// About the cursor, which stays where it is on the screen.
function zoom(chart, factor) {
  const [first, last] = chart.shown;
  const at = Math.min(last, Math.max(first, cursorOf(chart)));
  chart.lookAt([at - (at - first) * factor, at + (last - at) * factor]);
}
