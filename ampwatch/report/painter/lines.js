// The points of a chart's lines: the base's, which are thinned, and the rows that came since; smoothed;
// where they lie on the axis; skipped steps as ticks. All of one moment together is a scene.

import { shownLines } from "./chart_view.js";

const nothing = new Float64Array(0);

// Absent rows are left out, and a break is put where steps are missing for longer than `hole` or
// go back: a line across them would show what was not.
export function joined(base, tail, hole) {
  const x = Array.from(base?.x ?? nothing);
  const y = Array.from(base?.y ?? nothing);
  for (let row = 0; row < (tail?.x?.length ?? 0); row++) {
    if (Number.isNaN(tail.y[row])) continue;
    const ahead = x.length ? tail.x[row] - x[x.length - 1] : 1;
    if (ahead < 0 || ahead > hole) {
      x.push(x[x.length - 1]);
      y.push(NaN);
    }
    x.push(tail.x[row]);
    y.push(tail.y[row]);
  }
  return measured({ x, y });
}

// The line with its lowest and highest value, and the points that stand alone: no line would show them.
export function measured({ x, y }) {
  const lonely = [];
  const isBroken = (at) => at < 0 || at >= y.length || Number.isNaN(y[at]);
  let low = Infinity;
  let high = -Infinity;
  for (let at = 0; at < y.length; at++) {
    if (isBroken(at)) continue;
    if (y[at] < low) low = y[at];
    if (y[at] > high) high = y[at];
    if (isBroken(at - 1) && isBroken(at + 1)) lonely.push(at);
  }
  return { x, y, low, high, lonely };
}

const withoutZeros = new WeakMap();

// The line on a logarithmic axis: it breaks where it is 0, and has those points apart.
export function aboveZero(line) {
  if (line.low > 0) return line;
  if (!withoutZeros.has(line.y)) {
    const isZero = (value) => value <= 0;
    const broken = (values) => values && Array.from(values, (value, at) => (isZero(line.y[at]) ? NaN : value));
    const zeros = line.x.filter((_, at) => isZero(line.y[at])).map((step) => ({ first: step, last: step }));
    withoutZeros.set(line.y, { ...measured({ x: line.x, y: broken(line.y) }), zeros, smooth: broken(line.smooth), of: line.smooth });
  }
  const found = withoutZeros.get(line.y);
  if (found.of === line.smooth) return { ...line, ...found };
  withoutZeros.delete(line.y);
  return aboveZero(line);
}

// The smallest and largest value within a span of the axis, the smallest above 0, and the counts of all and
// of those that are not; null of nothing. A stepped line holds its value, so the point before the span counts
// as well.
export function extent(line, [first, last], stepped = false) {
  let low = Infinity;
  let high = -Infinity;
  let least = Infinity;
  let [count, zeros] = [0, 0];
  let held = NaN;
  const take = (value) => {
    count++;
    if (value <= 0) zeros++;
    else if (value < least) least = value;
    if (value < low) low = value;
    if (value > high) high = value;
  };
  for (let at = 0; at < line.x.length; at++) {
    const value = line.y[at];
    if (line.x[at] < first) held = value;
    else if (line.x[at] <= last && !Number.isNaN(value)) take(value);
  }
  if (stepped && !Number.isNaN(held)) take(held);
  return low <= high ? { low, high, least, zeros, count } : null;
}

// The point shown at a step: for stairs the value held there, else the nearest one, if near enough.
export function pointAt(line, step, reach, stepped = false) {
  let best = null;
  let distance = Infinity;
  for (let at = 0; at < line.x.length; at++) {
    if (Number.isNaN(line.y[at])) continue;
    const away = step - line.x[at];
    if (stepped ? away >= 0 && away <= distance : Math.abs(away) < distance) {
      distance = Math.abs(away);
      best = at;
    }
  }
  const isOver = best === line.x.length - 1 || Number.isNaN(line.y[best + 1]); // stairs end there
  if (best === null || (distance > reach && (!stepped || isOver))) return null;
  return { step: stepped ? step : line.x[best], value: line.y[best], smooth: line.smooth?.[best] };
}

// Where a line is not finite: the first and the last step of each stretch, and the kind of it.
export function stretchesOf(key, arrays) {
  const [last, kind] = ["last", "kind"].map((part) => arrays[`odd.${key}.${part}`] ?? nothing);
  return Array.from(arrays[`odd.${key}.first`] ?? nothing, (first, at) => ({ first, last: last[at], kind: kind[at] }));
}

// --- smoothing ----------------------------------------------------------------------------------

// A line made smooth, over so many steps: by distance, not by points, so it is the same however the
// points were thinned. What lies before and after counts alike: nothing moves to the right.

function smoothed(line, { smooth, way }) {
  const out = new Float64Array(line.y.length).fill(NaN);
  for (const [from, to] of stretches(line)) WAYS[way](line, from, to, smooth / 2, out);
  return out;
}

// Where a line's unbroken parts begin and end.
function stretches({ x, y }) {
  const found = [];
  let from = null;
  for (let at = 0; at <= y.length; at++) {
    const goesOn = at < y.length && !Number.isNaN(y[at]) && (from === null || x[at] >= x[at - 1]);
    if (from !== null && !goesOn) {
      found.push([from, at]);
      from = null;
    }
    if (at < y.length && from === null && !Number.isNaN(y[at])) from = at;
  }
  return found;
}

const WAYS = { mean, median };

// Each value's share falls by e over `reach` steps, and grows with the steps that it stands for.
function mean({ x, y }, from, to, reach, out) {
  const share = (at) => (x[Math.min(to - 1, at + 1)] - x[Math.max(from, at - 1)]) / 2 || 1;
  const ahead = new Float64Array(to - from);
  const weights = new Float64Array(to - from);
  let [sum, weight] = [0, 0];
  for (let at = to - 1; at >= from; at--) { // what comes after each point
    ahead[at - from] = sum;
    weights[at - from] = weight;
    const fade = at > from ? Math.exp((x[at - 1] - x[at]) / reach) : 0;
    sum = (sum + share(at) * y[at]) * fade;
    weight = (weight + share(at)) * fade;
  }
  [sum, weight] = [0, 0];
  for (let at = from; at < to; at++) { // and before it
    const fade = at > from ? Math.exp((x[at - 1] - x[at]) / reach) : 0;
    sum = sum * fade + share(at) * y[at];
    weight = weight * fade + share(at);
    out[at] = (sum + ahead[at - from]) / (weight + weights[at - from]);
  }
}

function median(line, from, to, reach, out) {
  around(line, from, to, reach, (sorted, at) => (out[at] = quantile(sorted, 0.5)));
}

// Calls `take` for each point with the ordered values within `reach` steps of it.
function around({ x, y }, from, to, reach, take) {
  const sorted = [];
  let [first, next] = [from, from];
  for (let at = from; at < to; at++) {
    while (next < to && x[next] <= x[at] + reach) sorted.splice(placeOf(sorted, y[next]), 0, y[next++]);
    while (x[first] < x[at] - reach) sorted.splice(placeOf(sorted, y[first++]), 1);
    take(sorted, at);
  }
}

function quantile(sorted, share) {
  const at = share * (sorted.length - 1);
  const low = Math.floor(at);
  return sorted[low] + (at - low) * (sorted[Math.ceil(at)] - sorted[low]);
}

// The first place in an ordered list whose value is not less.
function placeOf(sorted, value) {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

// --- what lies far out ---------------------------------------------------------------------------

const NEIGHBOURS = 15; // on each side, that a value is compared with
const FAR = 4; // times their middle half's width, from their median
const LEAST = 24; // points: of fewer none is far out

// The lowest and highest value in view that are not far from their neighbours; null of nothing.
export function usualExtent({ x, y }, [first, last], isLog) {
  const values = [];
  for (let at = 0; at < x.length; at++) {
    const value = isLog ? Math.log10(y[at]) : y[at]; // of 0 it is not finite
    if (x[at] >= first && x[at] <= last && Number.isFinite(value)) values.push(value);
  }
  let [low, high] = [Infinity, -Infinity];
  const take = (sorted, at) => {
    const away = Math.abs(values[at] - quantile(sorted, 0.5));
    if (values.length >= LEAST && away > FAR * (quantile(sorted, 0.75) - quantile(sorted, 0.25))) return;
    low = Math.min(low, values[at]);
    high = Math.max(high, values[at]);
  };
  around({ x: values.map((_, at) => at), y: values }, 0, values.length, NEIGHBOURS, take);
  if (low > high) return null;
  const [least, most] = [low, high].map((value) => (isLog ? 10 ** value : value));
  return { low: least, high: most, least, zeros: 0, count: values.length };
}

// --- places on the axis -------------------------------------------------------------------------

// Where on the axis a step lies: at itself, or at the time or another value that rises with the steps.
// A run that was resumed passes some steps twice; each pass has places of its own.

class Places {
  // `line` gives some steps their places; between them they lie in proportion.
  constructor(line) {
    this.passes = line ? passesOf(line) : [];
    this.isStep = this.passes.length === 0;
  }

  // The place of a step; without a pass, in the last one that has come so far.
  at(step, pass = null) {
    if (this.isStep) return step;
    const found = this.passes[pass] ?? this.passes.findLast(({ x }) => x[0] <= step) ?? this.passes[0];
    return along(found.x, found.y, step);
  }

  // The step that lies there.
  step(place) {
    if (this.isStep) return place;
    const found = this.passes.findLast(({ y }) => y[0] <= place) ?? this.passes[0];
    return along(found.y, found.x, place);
  }
}

function passesOf({ x, y }) {
  const passes = [];
  for (let at = 0; at < x.length; at++) {
    if (Number.isNaN(y[at])) continue;
    let pass = passes[passes.length - 1];
    if (!pass || x[at] < pass.x[pass.x.length - 1]) passes.push((pass = { x: [], y: [] }));
    pass.x.push(x[at]);
    pass.y.push(y[at]);
  }
  return passes;
}

// The line through the two points about `value`, or, beyond the ends, through the last two.
function along(from, to, value) {
  if (from.length < 2) return to[0] + (value - from[0]);
  let low = 0;
  let high = from.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (from[middle] <= value) low = middle;
    else high = middle;
  }
  const length = from[high] - from[low];
  return length === 0 ? to[high] : to[low] + ((value - from[low]) / length) * (to[high] - to[low]);
}

// --- skipped steps ------------------------------------------------------------------------------

// Skipped steps as ticks: none is ever lost from sight. Those that fall into one column of pixels
// merge into one tick that knows its count; zooming separates them.

// `cells` come from the server, finer than pixels, each with its first and last event; `since` are
// the single events after them. Both are in order.
export function ticks(cells, since, [first, last], pixels) {
  const column = (step) => Math.floor(((step - first) / (last - first || 1)) * pixels);
  const found = [];
  const put = (step, count) => {
    if (step < first || step > last) return;
    const before = found[found.length - 1];
    if (before && before.column === column(step)) before.count += count;
    else found.push({ step, count, column: column(step) });
  };
  for (let at = 0; at < (cells?.first?.length ?? 0); at++) {
    const one = cells.first[at] === cells.last[at];
    put(cells.first[at], one ? cells.count[at] : cells.count[at] - 1);
    if (!one) put(cells.last[at], 1);
  }
  for (const step of since ?? []) put(step, 1);
  return found;
}

// How many events the ticks within reach of a step stand for.
export function countNear(found, step, reach) {
  let count = 0;
  for (const tick of found) if (Math.abs(tick.step - step) <= reach) count += tick.count;
  return count;
}

// --- a scene ------------------------------------------------------------------------------------

// All that is drawn at one moment, and where: what the layout, the label under the mouse and a saved
// file take it from.

// Kinds of panels whose lines hold noise: a rate or a scale is meant as it is.
export const isNoisy = (panel, line) => (panel.kind === "number" || panel.kind === "share") && !line.stepped;

// `chart` has taken in a message, and knows what its reader chose.
export function sceneOf(chart, width, reach) {
  const { header, lines, picked, view, lit } = chart;
  const span = chart.span ?? header.axis;
  const lineOf = ({ key, line }) => lines[line || key];
  const axis = header.axes.find((one) => one.key === view.axis && lineOf(one).x.length) ?? null;
  const places = placesOf(axis && lineOf(axis));
  const scene = { header, lines: smoothLines(header, lines, view), span, picked, view, lit, width, axis, places, reach };
  const [low, high] = [places.at(span[0]), places.at(span[1])];
  scene.pixelOf = (step) => ((places.at(step) - low) / (high - low || 1)) * width;
  scene.stepOf = (pixel) => Math.round(places.step(low + (pixel / width) * (high - low)));
  const beyond = reach * (span[1] - span[0]);
  scene.rug = rugOf(chart, [span[0] - beyond, span[1] + beyond], (1 + 2 * reach) * width);
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
