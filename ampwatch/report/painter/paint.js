// Draws a chart as SVG, in place. plotly.js, which did it before, is 4.8 MB and took four tenths of
// the time to open the page; a chart of lines over steps needs little of it.

import { LANE, LEFT } from "./layout.js";

const SPACE = "http://www.w3.org/2000/svg";
const DASHES = { dash: "7 5", dot: "2 3" };
const SMALL = 11; // pixels, of numbers and labels
const BAND = 0.05; // how strong a finding's span is drawn,
const INTERVAL = 0.16; // and a guide's interval
const RUG = [0.15, 0.95]; // of the rug's height, where its ticks begin and end
const LONE_RADIUS = 2;

export function paint(plot, drawn) {
  const { width, height, span, plotWidth, plotHeight, panels } = drawn;
  const x = scaler(span, LEFT, LEFT + plotWidth);
  const inside = { x: LEFT, y: 0, width: plotWidth, height: plotHeight };
  const id = `aw-clip-${clips++}`;
  const svg = element("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": panels.map(said).join("; "), "font-size": SMALL }, [
    element("clipPath", { id }, [element("rect", inside)]),
    element("g", { "clip-path": `url(#${id})` }, drawn.bands.map((band) => bandOf(band, x, plotHeight))),
    ...panels.flatMap((panel) => panelOf(panel, x, inside, id)),
    element("g", { "clip-path": `url(#${id})` }, drawn.uprights.map((line) => uprightOf(line, x, plotHeight))),
    ...stepAxis(drawn, x),
    ...drawn.flags.map((flag) => flagOf(flag, x)),
  ]);
  plot.drawn = drawn; // for whoever looks from outside
  plot.replaceChildren(svg);
}

let clips = 0;

const said = ({ title }) => title.map(({ words }) => words).join("");

// From a value to a pixel; a logarithmic axis has its range in powers of ten.
function scaler([low, high], from, to, log = false) {
  const place = (value) => from + ((value - low) / (high - low)) * (to - from);
  return log ? (value) => place(Math.log10(value)) : place;
}

function panelOf({ top, bottom, title, axis, lines, guides, rug }, x, inside, id) {
  const y = scaler(axis.range, bottom, top, axis.type === "log");
  const held = (value) => Math.min(bottom, Math.max(top, y(value))); // within the panel
  const curves = lines.flatMap((line) => curve(line, x, y));
  return [
    ...guides.map((guide) => intervalOf(guide, held, inside)),
    ...axis.tickvals.flatMap((value, n) => gridline(axis.ticktext[n], Math.round(y(value)), top, bottom, inside)),
    element("g", { "clip-path": `url(#${id})` }, rug ? [...curves, rugOf(rug, x)] : curves),
    ...guides.filter((guide) => held(guide.value) === y(guide.value)).map((guide) => guideOf(guide, y, inside)),
    heading(title, top),
  ];
}

function gridline(text, y, top, bottom, { x, width }) {
  if (y > bottom + 1 || y < top - 1) return [];
  const label = { x: x - 6, y: y + 4, "text-anchor": "end" };
  return [element("path", { d: `M${x},${y + 0.5}h${width}`, class: "grid" }), element("text", label, [text])];
}

function stepAxis({ ticks, plotWidth, plotHeight }, x) {
  const y = plotHeight + 0.5;
  const labels = ticks.map(([value, text]) => element("text", { x: x(value), y: y + 17, "text-anchor": "middle" }, [text]));
  return [element("path", { d: `M${LEFT},${y}h${plotWidth}`, class: "grid" }), ...labels];
}

// A line holds its value to the next point where it is `stepped`, and breaks where a value is absent.
function curve(line, x, y) {
  let path = "";
  let before = null;
  for (let at = 0; at < line.x.length; at++) {
    if (Number.isNaN(line.y[at])) {
      before = null;
      continue;
    }
    const [px, py] = [x(line.x[at]).toFixed(1), y(line.y[at]).toFixed(1)];
    if (before === null) path += `M${px},${py}`;
    else if (line.stepped) path += py === before ? `H${px}` : `H${px}V${py}`;
    else path += `L${px},${py}`;
    before = py;
  }
  const drawn = element("path", {
    d: path, fill: "none", stroke: line.color, "stroke-width": line.width ?? 1.6, "stroke-linejoin": "round", "stroke-linecap": DASHES[line.dash] ? "butt" : "round", // a single value is a dot
    "stroke-dasharray": DASHES[line.dash] ?? "none", opacity: line.faint ? 0.45 : 1,
  });
  const dots = line.lonely.map((at) => element("circle", { cx: x(line.x[at]), cy: y(line.y[at]), r: LONE_RADIUS, fill: line.color }));
  return [drawn, ...dots];
}

// One path for all ticks: thousands of elements would take seconds to paint.
function rugOf({ top, bottom, ticks, color }, x) {
  const [from, to] = RUG.map((share) => top + share * (bottom - top));
  const path = ticks.map(({ step }) => `M${x(step).toFixed(1)},${from}V${to}`).join("");
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
  return element("text", { x: LEFT, y: top - 7, class: "title", "xml:space": "preserve" }, spans);
}

function flagOf({ text, at, left, lane, color }, x) {
  return element("text", { x: x(at) + (left ? -4 : 3), y: lane * LANE + SMALL, "text-anchor": left ? "end" : "start", style: `fill:${color}` }, [text]);
}

function element(name, attributes, inside = []) {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...inside);
  return made;
}
