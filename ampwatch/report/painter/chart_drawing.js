// A chart as SVG. The layout says where everything lies: panels above one another that share the axis
// of steps. Painting draws it, in place. plotly.js, which did it before, is 4.8 MB and took four tenths
// of the time to open the page; a chart of lines over steps needs little of it.

import { axisOf, canBeLog, clockTicks, countText, distinctTexts, linearTicks, noAxis, numberText, timeText, timeTicks } from "./axis.js";
import { labelOf, nameOf, shownLines } from "./chart_view.js";
import { shortened, tone, widthOf } from "./elements.js";
import { aboveZero, extent, isNoisy, usualExtent } from "./lines.js";

export const LEFT = 54; // pixels, as all below
export const RIGHT = 14; // at least; the names of lines have more
const TITLE = 30; // room above a panel for its title,
const TITLE_LINE = 16; // for each more line of it,
const TITLE_SIZE = 12.5;
const BUTTON = 58; // and beside it for the button of its axis
const RUG = 15;
const BOTTOM = 30;
const FLAG_LANE = 16; // over the first panel: what its upright lines are,
export const LANE = 14; // and each finding, in a lane of its own
const TICK_ROOM = 110; // between two labels of the axis of steps
const MOST_NAMED = 8; // lines of a panel with their names at their ends
const LETTERS = 28; // of such a name,
const NAME_SIZE = 10.5;
const NAME_ROOM = [132, 0.14]; // the most that the longest has: pixels, and a share of the chart
const NAME_GAP = 10; // between a line and its name
const AXIS_LETTERS = 16;

// `scene` is what there is to see and how: header, lines, rug, span, picked, view, places, axis;
// `heads` are the heights of the panels' legends.
export function layout(scene, width, heads, family) {
  const { header, lines, rug, picked, view, places, lit } = scene;
  const shown = spanOf(scene);
  const plotWidth = scene.width;
  const range = [places.at(shown[0]), places.at(shown[1])];
  const pixel = (step) => ((places.at(step) - range[0]) / (range[1] - range[0] || 1)) * plotWidth;
  const lanes = lanesOf(header, pixel, plotWidth, family);
  let bottom = Math.max(0, topLane(header) + LANE * lanes.length - 8);
  const panels = header.panels.map((panel, number) => {
    const visible = shownLines(panel, view);
    const { axis, outside } = axisAndOutside(panel, visible, lines, shown, view);
    const title = wrapped([...panel.title, ...cutText(outside)], plotWidth - BUTTON, family);
    const head = bottom + TITLE + (title.length - 1) * TITLE_LINE;
    const top = head + heads[number];
    const ground = top + panel.height;
    bottom = panel.rug ? ground + RUG : ground;
    return {
      top, head, bottom: ground, title, axis, outside,
      lines: visible.map((line) => ({ ...lineOf(line, placed(lines[line.key], axis), lit), hasBand: view.band && isNoisy(panel, line) })),
      names: namesOf(visible).map((text) => fitted(text, scene.right - NAME_GAP, family)),
      hasChoice: hasChoice(panel, lines),
      guides: (panel.guides ?? []).map((guide) => ({ ...guide, color: tone(guide.color) })),
      rug: panel.rug ? { top: ground, bottom, ticks: rug, color: tone("skip") } : null,
    };
  });
  return {
    width, height: bottom + BOTTOM, plotHeight: bottom, plotWidth,
    span: shown, range, ticks: axisTicks(scene, range, width), panels,
    bands: header.marks.filter(({ shaded }) => shaded).flatMap(bandsOf),
    uprights: uprights(header, picked),
    flags: flagged(header, shown, picked, plotWidth, pixel).map((flag) => ({ ...flag, color: tone(flag.color) })),
    lanes, family,
  };
}

// Room for words, whether or not a step is picked: nothing moves then.
const topLane = ({ reports, restart, notes, picked }) => (reports || restart !== null || picked !== null || notes.length > 0 ? FLAG_LANE : 0);

// How much room the names of lines have beside the panels.
export function rightRoom({ panels }, view, width, family) {
  const names = panels.flatMap((panel) => namesOf(shownLines(panel, view)));
  if (!names.length) return RIGHT;
  const [most, share] = NAME_ROOM;
  const longest = Math.max(...names.map((name) => widthOf(name, NAME_SIZE, 400, family)));
  return Math.round(Math.max(RIGHT, Math.min(longest + NAME_GAP + 4, most, share * width)));
}

function fitted(text, room, family) {
  let letters = text.length;
  while (letters > 3 && widthOf(shortened(text, letters), NAME_SIZE, 400, family) > room) letters--;
  return shortened(text, letters);
}

// The steps in view; a single one has room about it.
function spanOf({ span }) {
  return span[0] < span[1] ? span : [span[0] - 1, span[1] + 1];
}

const placed = (line, { type }) => (type === "log" ? aboveZero(line) : line);

function lineOf(line, points, lit) {
  const isLit = lit === nameOf(line);
  return { ...line, ...points, color: tone(line.color), isDim: lit !== null && !isLit, isLit };
}

// --- the axis of steps, or of what stands for them ------------------------------------------------

const TICKS = {
  step(range, most) {
    const at = linearTicks(range, most).filter((step) => Number.isInteger(step) && step >= 0); // a single step has room about it
    return at.map((step, n) => [step, (n ? "" : "step ") + countText(step)]);
  },
  second(range, most) {
    const seconds = timeTicks(range, most);
    const texts = distinctTexts(seconds, timeText, [3, 4, 5, 6, 7]);
    return seconds.map((second, at) => [second, texts[at]]);
  },
  clock(range, most, { origin_s: origin }) {
    return clockTicks(range, origin, most);
  },
  number(range, most, { label }) {
    return linearTicks(range, most).map((value, n) => [value, n ? numberText(value) : `${shortened(label, AXIS_LETTERS)} ${numberText(value)}`]);
  },
};

function axisTicks({ header, axis }, range, width) {
  return TICKS[axis?.kind ?? header.unit](range, Math.max(2, Math.floor(width / TICK_ROOM)), axis);
}

// --- a panel's axis -------------------------------------------------------------------------------

// Its range, and how many of the points in view lie outside of it, where that is wanted.
function axisAndOutside(panel, visible, lines, span, view) {
  if (!visible.length) return { axis: noAxis, outside: 0 };
  const { key } = panel.lines[0];
  const isLog = view.logs.includes(key) ? true : view.linear.includes(key) ? false : null;
  const whole = axisOf(panel.kind, seenIn(panel, visible, lines, span, extent), isLog);
  if (!view.cut || panel.kind === "power") return { axis: whole, outside: 0 };
  const usual = (line, within, stepped) => (stepped ? extent(line, within, stepped) : usualExtent(line, within, whole.type === "log"));
  const axis = axisOf(panel.kind, seenIn(panel, visible, lines, span, usual), isLog);
  return { axis, outside: countOutside(visible, lines, span, axis) };
}

function seenIn(panel, visible, lines, span, extentOf) {
  const found = visible.map((line) => extentOf(lines[line.key], span, line.stepped)).filter(Boolean);
  for (const { fits, low, value, high } of panel.guides ?? []) {
    const least = Math.min(low, value);
    if (fits) found.push({ low: least, high: Math.max(high, value), least, zeros: 0, count: 0 });
  }
  if (!found.length) return null;
  const all = (name) => found.map((part) => part[name]);
  const sum = (name) => all(name).reduce((one, other) => one + other, 0);
  return [Math.min(...all("low")), Math.max(...all("high")), Math.min(...all("least")), sum("zeros") / (sum("count") || 1)];
}

function countOutside(visible, lines, [first, last], { type, range }) {
  const [low, high] = type === "log" ? range.map((power) => 10 ** power) : range;
  let count = 0;
  for (const { key } of visible) {
    const { x, y } = lines[key];
    for (let at = 0; at < x.length; at++) {
      const isOutside = y[at] > high || (y[at] < low && (type !== "log" || y[at] > 0)); // a 0 lies at the ground
      if (x[at] >= first && x[at] <= last && isOutside) count++;
    }
  }
  return count;
}

// Whether its axis may be linear or logarithmic, so that there is a choice.
function hasChoice(panel, lines) {
  const known = panel.lines.map(({ key }) => lines[key]).filter(({ low, high }) => low <= high);
  return panel.kind !== "power" && known.some(({ high }) => high > 0) && known.every(({ low, high }) => canBeLog(low, high) || high === 0);
}

// --- words ----------------------------------------------------------------------------------------

function cutText(count) {
  return count ? [[`, ${countText(count)} drawn ${count === 1 ? "point lies" : "points lie"} outside`, "skip"]] : [];
}

// A title in as many lines as it needs: on a phone as well, all of it is said.
function wrapped(title, room, family) {
  const found = [[]];
  let used = 0;
  for (const [words, color] of title) {
    const weight = color === "muted" ? 400 : 650;
    for (const word of words.match(/\s*\S+\s*$|\s*\S+/g) ?? []) {
      const width = widthOf(word, TITLE_SIZE, weight, family);
      const isNew = used > 0 && used + width > room;
      if (isNew) found.push([]);
      used = isNew ? width : used + width;
      found[found.length - 1].push({ words: isNew ? word.trimStart() : word, color: tone(color), weight });
    }
  }
  return found;
}

// What tells the lines of a panel apart, at their ends: a colour alone would not do.
function namesOf(visible) {
  const isOne = visible.every(({ stepped }) => stepped) && visible.some(({ faint }) => faint); // a scale, and where it is held
  if (visible.length < 2 || visible.length > MOST_NAMED || isOne) return [];
  const labels = visible.map(labelOf);
  const rests = labels.map((label) => label.slice(sharedStart(labels)));
  const tell = rests.every((rest) => /\p{L}/u.test(rest)); // a number alone does not say what it is of
  return (tell ? rests : labels).map((label) => shortened(label, LETTERS));
}

// How many letters, in whole words, all labels begin with.
function sharedStart(labels) {
  let same = 0;
  while (same < labels[0].length && labels.every((label) => label[same] === labels[0][same])) same++;
  return labels[0].slice(0, same).lastIndexOf(" ") + 1;
}

function uprights(header, picked) {
  const found = [];
  if (header.restart !== null) found.push({ step: header.restart, color: tone("advice"), dash: "dash", width: 1.5 });
  for (const { step, color } of header.notes) found.push({ step, color: tone(color), dash: "dot", width: 1.2 });
  if (picked !== null) found.push({ step: picked, color: tone("ink"), width: 1 });
  return found;
}

// What the upright lines are, said above the first panel: each label's step, and whether it reads to the left.
// Of two that would lie over one another the first is said; the label at the cursor tells the other.
function flagged(header, span, picked, width, pixel) {
  const wanted = header.notes.map(({ step, label, color }) => ({ at: step, text: label, color }));
  if (header.restart !== null) wanted.unshift({ at: header.restart, text: "restart", color: "advice", left: true });
  if (picked !== null) wanted.unshift({ at: picked, text: `step ${countText(picked)} ×`, color: "ink", isPicked: true });
  const taken = []; // in pixels
  const said = [];
  for (const flag of wanted.filter(({ at }) => at >= span[0] && at <= span[1])) {
    const length = 7 * flag.text.length + 10;
    const at = pixel(flag.at);
    const left = (flag.left && at > length) || at + length > width;
    const own = left ? [at - length, at] : [at, at + length];
    if (taken.some(([from, to]) => from < own[1] && own[0] < to)) continue;
    taken.push(own);
    said.push({ ...flag, left });
  }
  return said;
}

// The steps of a finding that are shaded: all from the first to the last, or single ones.
function bandsOf({ first, last, steps, label, color }) {
  const spans = steps.length ? steps.map((step) => [step, step]) : [[first, last]];
  return spans.map(([from, to]) => ({ first: from, last: to, label, color: tone(color) }));
}

// A lane for each finding, in view or not: its steps as a bar or as ticks, and its name in the bar or where there is room.
function lanesOf(header, pixel, width, family) {
  return header.marks.map(({ first, last, steps, label, color }, number) => {
    const [from, to] = [pixel(first - 0.5), pixel(last + 0.5)].map((at) => Math.min(width, Math.max(0, at)));
    const ticks = steps.map(pixel).filter((at) => at >= 0 && at <= width);
    const lane = { top: topLane(header) + number * LANE, first, last, label, color: tone(color), from, to, ticks };
    if (pixel(last) < 0) return { ...lane, text: `‹ ${label}`, at: 0, anchor: "start" };
    if (pixel(first) > width) return { ...lane, text: `${label} ›`, at: width, anchor: "end" };
    const room = widthOf(label, NAME_SIZE, 400, family) + 8;
    if (steps.length > 1) return to + room <= width ? { ...lane, text: label, at: to + 4, anchor: "start" } : { ...lane, text: label, at: from - 4, anchor: "end" };
    if (to - from >= room || from + room <= width) return { ...lane, text: label, at: to - from >= room ? from + 4 : Math.min(to, width) + 4, anchor: "start" };
    return { ...lane, text: label, at: from - 4, anchor: "end" };
  });
}

// --- painting -----------------------------------------------------------------------------------

// Draws the layout, in place.

const SPACE = "http://www.w3.org/2000/svg";
const DASHES = { dash: "7 5", dot: "2 3" };
const SMALL = 11; // pixels, of numbers and labels
const LANE_BAR = 0.14; // how strong a finding's lane is drawn,
const BAND = 0.05; // the steps of the headline's,
const INTERVAL = 0.16; // a guide's interval,
const EXTREMES = 0.22; // and the band from the lowest to the highest value
const PALE = { faint: 0.45, raw: 0.28, dim: 0.12 };
const RUG_SHARE = [0.15, 0.95]; // of the rug's height, where its ticks begin and end
const LONE_RADIUS = 2;
const ODD = 4; // pixels, the height of the bar where a line is not finite,
const ODD_ROOM = 70; // and how wide it is where words fit above it
const HAIR = 1; // of a line that fills its columns: a broader one takes four times as long to draw
const NAME_LINE = 12;

// Lines are drawn `reach` times the plot's width beyond either end: so far the view can be moved without drawing anew.
export function paint(plot, drawn, { places, view, reach }) {
  const { width, height, range, plotWidth, plotHeight, panels } = drawn;
  const place = scaler(range, LEFT, LEFT + plotWidth);
  const x = places.isStep ? place : (step, pass) => place(places.at(step, pass));
  const inside = { x: LEFT, y: 0, width: plotWidth, height: plotHeight };
  const id = `aw-clip-${clips++}`;
  const clipped = { "clip-path": `url(#${id})` };
  const wide = Math.max(MOST_NARROW, (view.smooth / (drawn.span[1] - drawn.span[0])) * plotWidth);
  const svg = element("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": panels.map(titleText).join("; "), "font-size": SMALL }, [
    element("clipPath", { id }, [element("rect", inside)]),
    moving(clipped, drawn.bands.map((band) => bandOf(band, x, plotHeight))),
    ...panels.flatMap((panel, number) => panelOf(panel, x, inside, { id, number, wide, reach: reach * plotWidth })),
    moving({ ...clipped, class: "uprights" }, drawn.uprights.map((line) => uprightOf(line, x, plotHeight))),
    ...panels.flatMap(({ title, head }) => title.map((line, n) => heading(line, head - (title.length - 1 - n) * TITLE_LINE))), // over the uprights
    element("g", { class: "lanes" }, drawn.lanes.flatMap(laneOf)),
    element("path", { d: `M${LEFT},${plotHeight + 0.5}h${plotWidth}`, class: "grid" }),
    stepAxisOf(drawn, drawn.ticks, place),
    moving(clipped, drawn.flags.map((flag) => flagOf(flag, x))),
  ]);
  plot.drawn = drawn; // for whoever looks from outside
  plot.replaceChildren(svg);
}

// Moves what was painted to where it lies in another view of the same length; the lanes are painted anew, and the
// steps once they are others: what is new is laid out with all the rest.
export function shift(plot, { drawn, span, places, header, axis }) {
  const range = span.map((step) => places.at(step));
  const pixels = ((drawn.range[0] - range[0]) / (range[1] - range[0] || 1)) * drawn.plotWidth;
  for (const part of plot.querySelectorAll(".moving:not(:empty)")) Object.assign(part.style, { transform: `translateX(${pixels}px)`, ...LAYER });
  const ticks = axisTicks({ header, axis }, range, drawn.width);
  const steps = plot.querySelector(".step-axis");
  if (steps.dataset.said === saidBy(ticks)) steps.style.transform = `translateX(${pixels - steps.dataset.at}px)`;
  else replace(steps, stepAxisOf(drawn, ticks, scaler(range, LEFT, LEFT + drawn.plotWidth), pixels));
  const pixel = scaler(range, 0, drawn.plotWidth);
  const lanes = lanesOf(header, (step) => pixel(places.at(step)), drawn.plotWidth, drawn.family);
  const before = plot.querySelector(".lanes");
  if (lanes.length || before.hasChildNodes()) replace(before, element("g", { class: "lanes" }, lanes.flatMap(laneOf)));
}

function replace(part, other) {
  Object.assign(other.style, LAYER);
  part.replaceWith(other);
}

const LAYER = { willChange: "transform" }; // of its own: all lines would be drawn anew

const moving = (attributes, inside) => element("g", attributes, [element("g", { class: "moving" }, inside)]);

const MOST_NARROW = 3; // pixels, that a stretch of the band is wide

let clips = 0;

const titleText = ({ title }) => title.map((line) => line.map(({ words }) => words).join("")).join(" ");

// From a value to a pixel; a logarithmic axis has its range in powers of ten.
function scaler([low, high], from, to, log = false) {
  const place = (value) => from + ((value - low) / (high - low)) * (to - from);
  return log ? (value) => place(Math.log10(value)) : place;
}

// From a value of a panel to its pixel.
export const heightIn = ({ top, bottom, axis }) => scaler(axis.range, bottom, top, axis.type === "log");

function panelOf(panel, x, inside, { id, number, wide, reach }) {
  const { top, bottom, axis, lines, guides, rug } = panel;
  const y = heightIn(panel);
  const held = (value) => Math.min(bottom, Math.max(top, y(value))); // within the panel
  const clip = `${id}-${number}`;
  const ends = [inside.x, inside.x + inside.width];
  const far = [ends[0] - reach, ends[1] + reach];
  const curves = lines.flatMap((line) => curve(line, x, y, far, wide));
  return [
    element("clipPath", { id: clip }, [element("rect", { ...inside, y: top - 1, height: bottom - top + 2 })]),
    ...guides.map((guide) => intervalOf(guide, held, inside)),
    ...axis.tickvals.flatMap((value, n) => gridline(axis.ticktext[n], Math.round(y(value)), top, bottom, inside)),
    moving({ "clip-path": `url(#${clip})` }, curves),
    moving({ "clip-path": `url(#${id})` }, [
      ...oddOf(panel, x, far),
      ...(panel.outside ? lines.map((line) => arrowsOf(line, x, y, panel, far)) : []),
      ...(rug ? [rugOf(rug, x)] : []),
    ]),
    ...guides.filter((guide) => held(guide.value) === y(guide.value)).map((guide) => guideOf(guide, x, y, inside)),
    ...endNamesOf(panel, x, y, ends),
  ];
}

// Each line's name beside the panel, at the height of its end; none over another.
function endNamesOf({ names, lines, top, bottom }, x, y, [left, right]) {
  const found = names.map((text, n) => ({ text, color: lines[n].color, ...endOf(lines[n], x, y, left, right) }));
  const inView = found.filter(({ at }) => at !== undefined).sort((a, b) => a.down - b.down);
  let before = top - NAME_LINE / 2;
  for (const name of inView) before = name.down = Math.max(before + NAME_LINE, Math.min(bottom, name.down + 4));
  let below = bottom + NAME_LINE;
  for (const name of inView.reverse()) below = name.down = Math.min(below - NAME_LINE, name.down);
  return inView.map(({ text, color, down }) => element("text", { x: right + NAME_GAP - 4, y: down, class: "name", "font-size": NAME_SIZE, style: `fill:${color}` }, [text]));
}

// Where a line's last point in view lies.
function endOf({ x: steps, y: values, smooth }, x, y, left, right) {
  for (let at = steps.length - 1; at >= 0; at--) {
    const px = x(steps[at], null);
    if (!Number.isNaN(values[at]) && px <= right + 1) return px < left ? {} : { at: px, down: y((smooth ?? values)[at]) };
  }
  return {};
}

function gridline(text, y, top, bottom, { x, width }) {
  if (y > bottom + 1 || y < top - 1) return [];
  const label = { x: x - 6, y: y + 4, "text-anchor": "end" };
  return [element("path", { d: `M${x},${y + 0.5}h${width}`, class: "grid" }), element("text", label, [text])];
}

// The steps below the axis, and by how many pixels the view had been moved when they were put there.
function stepAxisOf({ plotHeight }, ticks, x, at = 0) {
  const labels = ticks.map(([value, text]) => element("text", { x: x(value), y: plotHeight + 17.5, "text-anchor": "middle" }, [text]));
  return element("g", { class: "step-axis", "data-said": saidBy(ticks), "data-at": at }, labels);
}

const saidBy = (ticks) => JSON.stringify(ticks);

// The line, or what was made smooth with the raw one pale beneath; and the band about it.
function curve(line, x, y, ends, wide) {
  const { color, dash, lonely, smooth, isDim, isLit } = line;
  const strength = isDim ? PALE.dim : line.faint ? PALE.faint : 1;
  const width = (line.width ?? 1.6) + (isLit ? 1 : 0);
  const drawn = (points, opacity, name) => {
    const { path, isDense } = pathOf(points, x, y, ends);
    return element("path", {
      d: path, class: name, "data-key": line.key, fill: "none", stroke: color, opacity,
      "stroke-width": isDense ? HAIR : width, "stroke-linejoin": isDense ? "bevel" : "round",
      "stroke-linecap": DASHES[dash] ? "butt" : "round", // a single value is a dot
      "stroke-dasharray": DASHES[dash] ?? "none",
    });
  };
  const found = [drawn(line, smooth ? strength * PALE.raw : strength, "raw")];
  if (line.hasBand) found.unshift(element("path", { d: extremesOf(line, x, y, ends, wide), class: "extremes", fill: color, opacity: strength * EXTREMES }));
  if (smooth) found.push(drawn({ ...line, y: smooth }, strength, "smooth"));
  const dots = lonely.filter((at) => x(line.x[at], null) >= ends[0] && x(line.x[at], null) <= ends[1]).map((at) => element("circle", { cx: x(line.x[at], null), cy: y(line.y[at]), r: LONE_RADIUS, fill: color, opacity: strength }));
  return [...found, ...dots];
}

// Where lines are not finite, or 0 on a logarithmic axis, each on a bar of its own at the panel's ground, with a
// word where there is room.
function oddOf({ lines, bottom }, x, [left, right]) {
  const stretches = lines.flatMap(({ odd, zeros = [], color }) => [{ color, text: "not finite", seen: inView(odd, x, left, right) },
    { color, text: "0", seen: inView(zeros, x, left, right) }]);
  const broken = stretches.filter(({ seen }) => seen.length);
  const bars = broken.map(({ color, seen }, n) => {
    const path = seen.map(([from, to]) => `M${from.toFixed(1)},${bottom - ODD * (n + 0.5)}h${Math.max(ODD, to - from).toFixed(1)}`).join("");
    return element("path", { d: path, class: "odd", fill: "none", stroke: color, "stroke-width": ODD - 1, "stroke-dasharray": "2 1" });
  });
  const every = broken.flatMap(({ seen, color, text }) => seen.map(([from, to]) => ({ from, to, color, text })));
  const [widest] = every.sort((a, b) => b.to - b.from - (a.to - a.from));
  if (!widest || (widest.to - widest.from < ODD_ROOM && widest.text !== "0")) return bars;
  const words = { x: (widest.from + widest.to) / 2, y: bottom - ODD * bars.length - 3, "text-anchor": "middle", class: "odd", style: `fill:${widest.color}` };
  return [...bars, element("text", words, [widest.text])];
}

function inView(stretches, x, left, right) {
  const pixels = stretches.map(({ first, last }) => [Math.max(left, x(first - 0.5)), Math.min(right, x(last + 0.5))]);
  return pixels.filter(([from, to]) => from <= right && to >= left);
}

// Points that lie outside of a panel: an arrow at its edge for each column of pixels.
function arrowsOf({ x: steps, y: values, color }, x, y, { top, bottom }, [left, right]) {
  const found = new Set();
  for (let at = 0; at < steps.length; at++) {
    const [px, py] = [Math.round(x(steps[at], null)), y(values[at])];
    if (px < left || px > right) continue;
    if (py < top) found.add(`M${px - 3},${top + 4}l3,-5l3,5z`);
    else if (py > bottom || Number.isNaN(py) && !Number.isNaN(values[at])) found.add(`M${px - 3},${bottom - 4}l3,5l3,-5z`);
  }
  return element("path", { d: [...found].join(""), class: "outside", fill: color });
}

// One path for all ticks: thousands of elements would take seconds to paint.
function rugOf({ top, bottom, ticks, color }, x) {
  const [from, to] = RUG_SHARE.map((share) => top + share * (bottom - top));
  const path = ticks.map(({ step }) => `M${x(step, null).toFixed(1)},${from}V${to}`).join("");
  return element("path", { d: path, fill: "none", stroke: color, "stroke-width": 1.5 });
}

function bandOf({ first, last, color }, x, height) {
  const [left, right] = [x(first - 0.5), x(last + 0.5)];
  return element("rect", { x: left, y: 0, width: Math.max(0, right - left), height, fill: color, opacity: BAND });
}

function uprightOf({ step, color, dash, width }, x, height) {
  return element("path", { d: `M${x(step)},0V${height}`, stroke: color, "stroke-width": width, "stroke-dasharray": DASHES[dash] ?? "none" });
}

// The advised value's interval,
function intervalOf({ low, high, color }, y, inside) {
  const [top, bottom] = [y(high), y(low)];
  return element("rect", { ...inside, y: top, height: Math.max(0, bottom - top), fill: color, opacity: INTERVAL });
}

// and the value itself, or a level since it stood.
function guideOf({ value, color, since }, x, y, { x: left, width }) {
  const from = Number.isFinite(since) ? Math.min(left + width, Math.max(left, x(since))) : left;
  return element("path", { d: `M${from},${y(value)}H${left + width}`, class: "guide", stroke: color, "stroke-width": 1.5, "stroke-dasharray": DASHES.dot });
}

function heading(parts, top) {
  const spans = parts.map(({ words, color, weight }) => element("tspan", { style: `fill:${color};font-weight:${weight}` }, [words]));
  return element("text", { x: LEFT, y: top - 7, class: "title", "font-size": TITLE_SIZE, "xml:space": "preserve" }, spans);
}

// A finding's steps, over all panels.
function laneOf({ from, to, top, color, text, at, anchor, ticks }) {
  const bar = element("rect", { x: LEFT + from, y: top, width: Math.max(1, to - from), height: LANE - 2, rx: 2, fill: color, opacity: LANE_BAR });
  const starts = (ticks.length ? ticks : [from]).map((place) => element("rect", { x: LEFT + place, y: top, width: 2, height: LANE - 2, fill: color }));
  const isInside = to > from && at > from && at < to;
  const ground = isInside ? `;stroke:color-mix(in srgb, ${color} ${100 * LANE_BAR}%, var(--aw-page))` : "";
  const words = element("text", { x: LEFT + at, y: top + LANE - 4, "text-anchor": anchor, class: "lane", "font-size": NAME_SIZE, style: `fill:${color}${ground}` }, [text]);
  if (ticks.length) return [...starts, words];
  return to > from ? [bar, ...starts, words] : [words];
}

function flagOf({ text, at, left, color }, x) {
  return element("text", { x: x(at) + (left ? -4 : 4), y: SMALL, "text-anchor": left ? "end" : "start", class: "flag", style: `fill:${color}` }, [text]);
}

function element(name, attributes, inside = []) {
  const node = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...inside);
  return node;
}

// --- paths of lines -----------------------------------------------------------------------------

// A line as the path of an SVG: what cannot be seen is left out, so that thousands of points are drawn
// within one frame.

const DENSE = 0.25; // of the columns of pixels hold several points

// `x(step, pass)` and `y(value)` give pixels. A line holds its value to the next point where it is
// `stepped`, and breaks where a value is absent or the steps go back. Before the view one point is
// drawn, for the line that comes in, and after it one.
function pathOf({ x: steps, y: values, stepped }, x, y, [left, right]) {
  const pen = new Pen(stepped);
  let pass = 0;
  let before = -Infinity;
  let outside = -1; // the last point before the view
  let isPast = false;
  for (let at = 0; at < steps.length; at++) {
    const step = steps[at];
    const isBack = step < before;
    before = step;
    if (isBack) pass++;
    if (isBack || values[at] !== values[at]) { // absent: not a number
      pen.lift();
      outside = -1;
      isPast = false;
      if (!isBack || values[at] !== values[at]) continue;
    }
    if (isPast) continue;
    const px = x(step, pass);
    if (px < left) {
      outside = at;
      continue;
    }
    if (outside >= 0) pen.add(x(steps[outside], pass), y(values[outside]));
    outside = -1;
    pen.add(px, y(values[at]));
    isPast = px > right;
  }
  pen.lift();
  return { path: pen.path, isDense: pen.crowded > DENSE * (right - left) };
}

// Of a column of pixels it draws the first, the lowest, the highest and the last point: no other
// would be seen.
class Pen {
  constructor(stepped) {
    this.stepped = stepped;
    this.path = "";
    this.isDown = false;
    this.height = NaN; // where the line has come to
    this.count = 0; // of points in this column
    this.crowded = 0; // columns with more than two
    this.column = this.px = this.first = this.low = this.high = this.last = this.lastX = NaN;
    this.lowAt = this.highAt = 0;
  }

  add(px, py) {
    const column = Math.floor(px);
    if (column !== this.column) {
      this.flush();
      this.column = column;
      this.px = px;
      this.first = this.low = this.high = py;
      this.lowAt = this.highAt = 0;
    } else if (py < this.low) {
      this.low = py;
      this.lowAt = this.count;
    } else if (py > this.high) {
      this.high = py;
      this.highAt = this.count;
    }
    this.last = py;
    this.lastX = px;
    this.count++;
  }

  flush() {
    const { count } = this;
    if (!count) return;
    this.to(this.px, this.first);
    if (count > 2) {
      this.crowded++;
      const [one, other] = this.lowAt < this.highAt ? [this.low, this.high] : [this.high, this.low];
      this.up(one);
      this.up(other);
    }
    if (count > 1) this.to(this.lastX, this.last);
    this.count = 0;
  }

  to(px, py) {
    const [along, down] = [tenth(px), tenth(py)];
    if (!this.isDown) this.path += `M${along},${down}`;
    else if (this.stepped) this.path += down === this.height ? `H${along}` : `H${along}V${down}`;
    else this.path += `L${along},${down}`;
    this.isDown = true;
    this.height = down;
  }

  up(py) {
    const down = tenth(py);
    if (down !== this.height) this.path += `V${down}`;
    this.height = down;
  }

  lift() {
    this.flush();
    this.isDown = false;
    this.column = NaN;
  }
}

const tenth = (pixel) => Math.round(pixel * 10) / 10;

// From the lowest to the highest value of each stretch of pixels, as a closed path.
function extremesOf({ x: steps, y: values }, x, y, [left, right], wide) {
  const cells = new Map();
  let pass = 0;
  for (let at = 0; at < steps.length; at++) {
    if (at && steps[at] < steps[at - 1]) pass++;
    const px = x(steps[at], pass);
    if (Number.isNaN(values[at]) || px < left || px > right) continue;
    const cell = Math.floor((px - left) / wide);
    const py = y(values[at]);
    const found = cells.get(cell);
    if (!found) cells.set(cell, [py, py]);
    else cells.set(cell, [Math.min(found[0], py), Math.max(found[1], py)]);
  }
  const rectangle = ([cell, [top, bottom]]) => {
    const from = tenth(left + cell * wide);
    return `M${from},${tenth(top - 0.5)}H${tenth(Math.min(right, from + wide))}V${tenth(bottom + 0.5)}H${from}Z`;
  };
  return [...cells].map(rectangle).join("");
}
