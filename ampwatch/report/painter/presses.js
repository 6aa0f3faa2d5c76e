// While a button of the mouse or a finger is down, the HTML under it stays as it is: an element that is
// replaced before it is released never hears of the click.

const MOST_MS = 2000; // as long as a press is waited for: the browser does not tell all releases

const waiting = new Map(); // place: what draws there
let timer = null;

window.addEventListener("pointerdown", () => {
  clearTimeout(timer);
  timer = setTimeout(release, MOST_MS);
}, { capture: true });
for (const end of ["pointerup", "pointercancel"]) {
  // The click comes right after the release.
  window.addEventListener(end, () => {
    clearTimeout(timer);
    timer = setTimeout(release);
  }, { capture: true });
}

// Draw in this place, now or once nothing is pressed; the latest of what waits for a place is drawn.
export function onceReleased(place, draw) {
  if (timer === null) draw();
  else waiting.set(place, draw);
}

function release() {
  timer = null;
  const draws = [...waiting.values()];
  waiting.clear();
  for (const draw of draws) draw();
}
