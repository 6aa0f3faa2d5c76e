// Draws a chart as SVG, in place. plotly.js, which did it before, is 4.8 MB and took four tenths of
// the time to open the page; a chart of lines over steps needs little of it.

import { extremesOf, pathOf } from "./curves.js";
import { LANE, LEFT, TITLE_SIZE } from "./layout.js";

const SPACE = "http://www.w3.org/2000/svg";
const DASHES = { dash: "7 5", dot: "2 3" };
const SMALL = 11; // pixels, of numbers and labels
const BAND = 0.05; // how strong a finding's span is drawn,
const INTERVAL = 0.16; // a guide's interval,
const EXTREMES = 0.22; // and the band from the lowest to the highest value
const PALE = { faint: 0.45, raw: 0.28, dim: 0.12 };
const RUG = [0.15, 0.95]; // of the rug's height, where its ticks begin and end
const LONE_RADIUS = 2;
const ODD = 4; // pixels, the height of the bar where a line is not finite,
const ODD_ROOM = 70; // and how wide it is where words fit above it
const HAIR = 1; // of a line that fills its columns: a broader one takes four times as long to draw
const TITLE_LINE = 16;
const NAME_LINE = 12;

export function paint(plot, drawn, { places, view }) {
  const { width, height, range, plotWidth, plotHeight, panels } = drawn;
  const place = scaler(range, LEFT, LEFT + plotWidth);
  const x = places.isStep ? place : (step, pass) => place(places.at(step, pass));
  const inside = { x: LEFT, y: 0, width: plotWidth, height: plotHeight };
  const id = `aw-clip-${clips++}`;
  const clipped = { "clip-path": `url(#${id})` };
  const wide = Math.max(MOST_NARROW, (view.smooth / (drawn.span[1] - drawn.span[0])) * plotWidth);
  const svg = element("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": panels.map(said).join("; "), "font-size": SMALL }, [
    element("clipPath", { id }, [element("rect", inside)]),
    element("g", clipped, drawn.bands.map((band) => bandOf(band, x, plotHeight))),
    ...panels.flatMap((panel, number) => panelOf(panel, x, inside, { id, number, wide })),
    element("g", { ...clipped, class: "uprights" }, drawn.uprights.map((line) => uprightOf(line, x, plotHeight))),
    ...panels.flatMap(({ title, head }) => title.map((line, n) => heading(line, head - (title.length - 1 - n) * TITLE_LINE))), // over the uprights
    ...axisOf(drawn, place),
    ...drawn.flags.map((flag) => flagOf(flag, x)),
  ]);
  plot.drawn = drawn; // for whoever looks from outside
  plot.replaceChildren(svg);
}

const MOST_NARROW = 3; // pixels, that a stretch of the band is wide

let clips = 0;

const said = ({ title }) => title.map((line) => line.map(({ words }) => words).join("")).join(" ");

// From a value to a pixel; a logarithmic axis has its range in powers of ten.
function scaler([low, high], from, to, log = false) {
  const place = (value) => from + ((value - low) / (high - low)) * (to - from);
  return log ? (value) => place(Math.log10(value)) : place;
}

function panelOf(panel, x, inside, { id, number, wide }) {
  const { top, bottom, axis, lines, guides, rug } = panel;
  const y = scaler(axis.range, bottom, top, axis.type === "log");
  const held = (value) => Math.min(bottom, Math.max(top, y(value))); // within the panel
  const clip = `${id}-${number}`;
  const ends = [inside.x, inside.x + inside.width];
  const curves = lines.flatMap((line) => curve(line, x, y, ends, wide));
  return [
    element("clipPath", { id: clip }, [element("rect", { ...inside, y: top - 1, height: bottom - top + 2 })]),
    ...guides.map((guide) => intervalOf(guide, held, inside)),
    ...axis.tickvals.flatMap((value, n) => gridline(axis.ticktext[n], Math.round(y(value)), top, bottom, inside)),
    element("g", { "clip-path": `url(#${clip})` }, curves),
    ...oddOf(panel, x, ends),
    ...(panel.outside ? lines.map((line) => outsideOf(line, x, y, panel, ends)) : []),
    ...(rug ? [element("g", { "clip-path": `url(#${id})` }, [rugOf(rug, x)])] : []),
    ...guides.filter((guide) => held(guide.value) === y(guide.value)).map((guide) => guideOf(guide, y, inside)),
    ...namesOf(panel, x, y, ends),
  ];
}

// Each line's name at its end, none over another.
function namesOf({ names, lines, top, bottom }, x, y, [left, right]) {
  const found = names.map((text, n) => ({ text, color: lines[n].color, ...endOf(lines[n], x, y, left, right) }));
  const inView = found.filter(({ at }) => at !== undefined).sort((a, b) => a.down - b.down);
  let before = top - NAME_LINE / 2;
  for (const name of inView) before = name.down = Math.max(before + NAME_LINE, Math.min(bottom, name.down - 4));
  let below = bottom + NAME_LINE;
  for (const name of inView.reverse()) below = name.down = Math.min(below - NAME_LINE, name.down);
  return inView.map(({ text, color, at, down }) => element("text", { x: at - 4, y: down, "text-anchor": "end", class: "name", style: `fill:${color}` }, [text]));
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

function axisOf({ ticks, plotWidth, plotHeight }, x) {
  const y = plotHeight + 0.5;
  const labels = ticks.map(([value, text]) => element("text", { x: x(value), y: y + 17, "text-anchor": "middle" }, [text]));
  return [element("path", { d: `M${LEFT},${y}h${plotWidth}`, class: "grid" }), ...labels];
}

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

// Where lines are not finite, each on a bar of its own at the panel's ground, with a word where there is room.
function oddOf({ lines, bottom }, x, [left, right]) {
  const broken = lines.map(({ odd, color }) => ({ color, seen: inView(odd, x, left, right) })).filter(({ seen }) => seen.length);
  const bars = broken.map(({ color, seen }, n) => {
    const path = seen.map(([from, to]) => `M${from.toFixed(1)},${bottom - ODD * (n + 0.5)}h${Math.max(ODD, to - from).toFixed(1)}`).join("");
    return element("path", { d: path, class: "odd", fill: "none", stroke: color, "stroke-width": ODD - 1, "stroke-dasharray": "2 1" });
  });
  const [widest] = broken.flatMap(({ seen, color }) => seen.map(([from, to]) => ({ from, to, color }))).sort((a, b) => b.to - b.from - (a.to - a.from));
  if (!widest || widest.to - widest.from < ODD_ROOM) return bars;
  const words = { x: (widest.from + widest.to) / 2, y: bottom - ODD * bars.length - 3, "text-anchor": "middle", class: "odd", style: `fill:${widest.color}` };
  return [...bars, element("text", words, ["not finite"])];
}

function inView(stretches, x, left, right) {
  const pixels = stretches.map(({ first, last }) => [Math.max(left, x(first - 0.5)), Math.min(right, x(last + 0.5))]);
  return pixels.filter(([from, to]) => from <= right && to >= left);
}

// Points that lie outside of a panel: an arrow at its edge for each column of pixels.
function outsideOf({ x: steps, y: values, color }, x, y, { top, bottom }, [left, right]) {
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
  const [from, to] = RUG.map((share) => top + share * (bottom - top));
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

// and the value itself, or a level.
function guideOf({ value, color }, y, { x, width }) {
  return element("path", { d: `M${x},${y(value)}h${width}`, stroke: color, "stroke-width": 1.5, "stroke-dasharray": DASHES.dot });
}

function heading(parts, top) {
  const spans = parts.map(({ words, color, weight }) => element("tspan", { style: `fill:${color};font-weight:${weight}` }, [words]));
  return element("text", { x: LEFT, y: top - 7, class: "title", "font-size": TITLE_SIZE, "xml:space": "preserve" }, spans);
}

function flagOf({ text, at, left, lane, color }, x) {
  return element("text", { x: x(at) + (left ? -4 : 3), y: lane * LANE + SMALL, "text-anchor": left ? "end" : "start", class: "flag", style: `fill:${color}` }, [text]);
}

function element(name, attributes, inside = []) {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...inside);
  return made;
}
