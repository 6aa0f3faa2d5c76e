// The layers in one of the views that their run has: usable loss scales, what casts lose, what if.

import { countText, powerText, powerTicks } from "./axis.js";
import { helpOf, make, shortened, tableHead } from "./elements.js";

const NAME_LETTERS = 24;

export class LayerViews {
  constructor(place) {
    this.title = make("b");
    this.at = make("span");
    this.help = helpOf("What these bars and numbers mean");
    const head = make("div", "aw-chart-title", this.title, this.at, this.help.place);
    this.place = make("div", "aw-views", head);
    place.append(this.place);
  }

  show(header) {
    if (this.kind !== header.component) {
      this.body?.place.remove();
      this.kind = header.component;
      this.body = this.kind === "windows" ? new ScaleWindows() : new FormatLosses();
      this.body.ask = (kind, value) => this.ask(kind, value);
      this.place.append(this.body.place);
    }
    const { title, more, step, fault, rows, hidden } = header;
    const isNamed = fault && rows.some(({ layer }) => layer === fault.layer);
    this.title.textContent = title;
    this.at.textContent = [...(more ? [more] : []), stepText(step), ...(isNamed ? [`✕ ${fault.words}`] : [])].join(" · ");
    this.body.show(header);
    const rest = hidden ? ` ${countText(hidden)} layers with more room are not shown.` : "";
    this.help.says(header.note + rest);
    this.place.dataset.view = header.view; // for whoever looks from outside
  }

  close() {
    this.place.remove();
  }
}

// When the layers were seen so.
export const stepText = (step) => (step === null ? "end of the record" : `step ${countText(step)}`);

// Room for the longest of these names, which are so many letters long.
function setNameWidth(place, letters) {
  place.style.setProperty("--aw-names", `${0.41 * Math.max(...letters.map((count) => Math.min(NAME_LETTERS, count))) + 1}rem`);
}

// A layer's name, which opens it; the one that a finding names is marked.
function nameOf({ layer, says }, { fault, chosen }, className = "aw-window-name") {
  const name = make("span", layer === fault?.layer ? `${className} fault` : className, make("bdi", "", shortened(layer, NAME_LETTERS)));
  return { name, title: says ? `${layer}: ${says}` : layer, isChosen: layer === chosen };
}

// --- usable loss scales ---------------------------------------------------------------------------

const EDGE = 8; // powers of two below 1 that are still worth room

// One bar a layer, from the smallest to the largest scale at which it neither loses its gradients nor
// overflows; the scale of the same step as an upright line; what the title is about in red.
class ScaleWindows {
  constructor() {
    this.place = make("div", "aw-windows");
  }

  show(header) {
    const { rows, scale } = header;
    const range = windowRange(rows, scale);
    const lines = make("div", "aw-window-lines");
    if (scale !== null) {
      const off = scale < range[0] ? "◂ " : ""; // far below all windows: at the edge, and said
      lines.append(upright(`${off}loss scale ${powerText(scale)}`, scale, range));
    }
    const bars = rows.map((row) => this.row(row, range, header));
    const chart = make("div", "aw-window-rows", ...bars, lines, windowAxis(range));
    setNameWidth(chart, rows.map(({ layer }) => layer.length + (layer === header.fault?.layer ? 2 : 0)));
    this.place.replaceChildren(chart);
  }

  row(row, range, header) {
    const button = make("button", row.isFault ? "aw-window fault-bar" : "aw-window");
    const { name, isChosen } = nameOf(row, header);
    button.title = `${row.layer}: ${windowText(row)}`;
    if (isChosen) button.setAttribute("aria-current", "true");
    button.append(name, make("span", "aw-window-track", windowBar(row, range)));
    button.addEventListener("click", () => this.ask("layer", row.layer));
    return button;
  }
}

// A window in words.
export function windowText({ low, high }) {
  if (low !== null && low > high)
    return `no scale: its gradients are lost below ${powerText(Math.round(low))} and overflow above ${powerText(Math.round(high))}`;
  return `${low === null ? "" : `from ${powerText(Math.ceil(low))} `}up to ${powerText(Math.floor(high))}`;
}

export function windowBar({ low, high }, range) {
  const isEmpty = low !== null && low > high;
  const bar = make("span", low === null ? "aw-window-bar open" : isEmpty ? "aw-window-bar empty" : "aw-window-bar");
  const [left, right] = isEmpty ? [high, low] : [low ?? -Infinity, high];
  bar.style.left = share(left, range);
  bar.style.right = `calc(100% - ${share(right, range)})`;
  return bar;
}

const share = (value, range) => `${(100 * (Math.min(range[1], Math.max(range[0], value)) - range[0])) / (range[1] - range[0])}%`;

export function windowAxis(range) {
  const axis = make("div", "aw-window-axis");
  for (const tick of powerTicks(range)) {
    const label = make("span", "", powerText(tick));
    label.style.left = share(tick, range);
    axis.append(label);
  }
  return axis;
}

// What holds all windows; the scale, when it fell far below them, stands at the edge.
export function windowRange(rows, scale) {
  const lows = rows.map((row) => row.low).filter((low) => low !== null);
  const values = [...lows, ...rows.map((row) => row.high)];
  const low = Math.min(0, ...values, Math.max(scale ?? 0, -EDGE));
  return [Math.floor(low) - 1, Math.ceil(Math.max(16, ...values, scale ?? 0)) + 1];
}

export function upright(text, value, range) {
  const line = make("div", "aw-window-line", make("span", "", text));
  line.style.left = share(value, range);
  if (parseFloat(line.style.left) > 50) line.classList.add("late"); // its words read to the left
  return line;
}

// --- what formats below sixteen bits lose ---------------------------------------------------------

const LEAST_SHARE = 0.01; // of a loss that has a bar; the number tells smaller ones

// A row a layer, a cell an operand or a format, its number over a bar. Losses at the small end grow to
// the left of a cell's middle, those at the large end to the right.
class FormatLosses {
  constructor() {
    this.table = make("table", "aw-losses");
    this.place = make("div", "aw-windows aw-loss-view", this.table);
  }

  show(header) {
    const { fault, columns, rows } = header;
    this.place.classList.toggle("what-if", header.view === "what-if");
    const focused = this.table.contains(document.activeElement) ? document.activeElement.title : null;
    const head = tableHead(make("th", "aw-spoken-head", "layer"), ...columns.map((words) => make("th", "", words)));
    this.table.replaceChildren(head, make("tbody", "", ...rows.map((row) => this.row(row, header))));
    setNameWidth(this.table, [5, ...rows.map(({ layer }) => layer.length + (layer === fault?.layer ? 2 : 0))]);
    if (focused !== null) [...this.table.querySelectorAll("button")].find((button) => button.title === focused)?.focus();
  }

  row(row, header) {
    const { name, title, isChosen } = nameOf(row, header);
    const button = Object.assign(make("button", "", name), { type: "button", title });
    if (isChosen) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => this.ask("layer", row.layer));
    const head = Object.assign(make("th", "", button), { scope: "row" });
    return make("tr", "", head, ...row.cells.map((cell) => cellOf(cell, header.isDiverging)));
  }
}

export function cellOf({ text, says, flushed, cut, isOver }, isDiverging, tag = "td") {
  const bars = isDiverging ? [barOf("flushed", flushed, 50, "right"), barOf("cut", cut, 50, "left")] : [barOf("flushed", flushed, 100, null)];
  return Object.assign(make(tag, isOver ? "aw-map-cell over" : "aw-map-cell", ...bars, make("span", "", text)), { title: says });
}

// A bar from one side of a cell or, of half its room, from the middle.
function barOf(kind, share, room, fromMiddle) {
  if (share < LEAST_SHARE) return null;
  const bar = make("i", `aw-loss-bar ${kind}`);
  bar.style.width = `${room * Math.min(1, share)}%`;
  bar.style[fromMiddle ?? "left"] = fromMiddle ? "50%" : "0";
  return bar;
}
