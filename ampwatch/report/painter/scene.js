// All that is drawn at one moment, and where: what the layout, the label under the mouse and a saved
// file take it from.

import { Places } from "./places.js";
import { ticks } from "./skips.js";
import { smoothed } from "./smoothing.js";
import { shownLines } from "./view.js";

// Kinds of panels whose lines hold noise: a rate or a scale is meant as it is.
export const isNoisy = (panel, line) => (panel.kind === "number" || panel.kind === "share") && !line.stepped;

// `chart` has taken in a message, and knows what its reader chose.
export function sceneOf(chart, width) {
  const { header, lines, picked, view, lit } = chart;
  const span = chart.span ?? header.axis;
  const axis = header.axes.find(({ key }) => key === view.axis && lines[key].x.length) ?? null;
  const places = placesOf(axis && lines[axis.key]);
  const scene = { header, lines: smoothLines(header, lines, view), span, picked, view, lit, width, axis, places };
  const [low, high] = [places.at(span[0]), places.at(span[1])];
  scene.pixelOf = (step) => ((places.at(step) - low) / (high - low || 1)) * width;
  scene.stepOf = (pixel) => Math.round(places.step(low + (pixel / width) * (high - low)));
  scene.rug = rugOf(chart, span, width);
  return scene;
}

const STEPS = new Places(null);
const known = new WeakMap();

function placesOf(line) {
  if (!line) return STEPS;
  if (!known.has(line)) known.set(line, new Places(line));
  return known.get(line);
}

function rugOf({ bases, arrays }, span, width) {
  const base = bases.arrays;
  const cells = { first: base["base.skips.first"], last: base["base.skips.last"], count: base["base.skips.count"] };
  return ticks(cells, arrays["tail.skips"], span, width);
}

// A line keeps what was made smooth of it until it has other points, or another way is chosen.
function smoothLines({ panels }, lines, view) {
  const way = view.smooth ? `${view.way} ${view.smooth}` : null;
  for (const panel of panels) {
    for (const stroke of shownLines(panel, view)) {
      const line = lines[stroke.key];
      if (line.way === way) continue;
      line.way = way;
      line.smooth = way && isNoisy(panel, stroke) ? smoothed(line, view) : null;
    }
  }
  return lines;
}
