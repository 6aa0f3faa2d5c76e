// The layers over the steps: a row a layer in forward order, the worst value of each stretch as a
// shade. Drawn on a canvas: thousands of cells as elements would take seconds.

import { make, shortened } from "./elements.js";
import { countText, linearTicks, numberText } from "./ticks.js";

const ROW = [6, 20]; // pixels, least and most
const NAMES = 176;
const BOTTOM = 24;
const TALLEST = 620;
const LETTERS = 26;

export class Heatmap {
  constructor(place) {
    this.place = make("div", "aw-heatmap");
    this.title = make("div", "aw-chart-title");
    this.canvas = make("canvas");
    this.label = make("div", "aw-label");
    this.label.hidden = true;
    this.place.append(this.title, this.canvas, this.label);
    place.append(this.place);
    this.resize = new ResizeObserver(() => this.draw());
    this.resize.observe(this.place);
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => (this.label.hidden = true));
    this.canvas.addEventListener("click", (event) => this.choose(event));
  }

  show(header, { edges, values }) {
    Object.assign(this, { header, edges, values });
    this.draw();
  }

  close() {
    this.resize.disconnect();
    this.place.remove();
  }

  // --- drawing -----------------------------------------------------------------------------------

  draw() {
    if (!this.header) return;
    const { header, canvas } = this;
    this.isDark = getComputedStyle(this.place).colorScheme.includes("dark");
    this.palette = header.palette[this.isDark ? "dark" : "light"];
    const count = header.layers.length;
    this.row = Math.max(ROW[0], Math.min(ROW[1], TALLEST / count));
    this.width = this.place.clientWidth;
    const height = this.row * count + BOTTOM;
    const density = window.devicePixelRatio || 1;
    canvas.width = this.width * density;
    canvas.height = height * density;
    Object.assign(canvas.style, { width: `${this.width}px`, height: `${height}px` });
    const pen = canvas.getContext("2d");
    pen.scale(density, density);
    this.range = this.rangeOf();
    this.words();
    this.cells(pen);
    this.names(pen);
    this.axis(pen, this.row * count);
  }

  rangeOf() {
    const at = (value) => (this.header.log ? Math.log10(value) : value);
    let low = Infinity;
    let high = -Infinity;
    for (const value of this.values) {
      const place = at(value);
      if (!Number.isFinite(place)) continue;
      if (place < low) low = place;
      if (place > high) high = place;
    }
    return { low, high: high > low ? high : low + 1, at };
  }

  words() {
    const { header } = this;
    const unit = header.unit ? `, ${header.unit}` : "";
    const odd = this.values.some((value) => Math.abs(value) === Infinity);
    this.title.replaceChildren(
      make("b", "", `Layers by step: ${header.label}${unit}`), ...this.ramp(),
      ...(odd ? [make("b", "", this.isDark ? " white" : " black"), make("span", "", " not finite")] : []),
    );
  }

  // What the shades mean; without a finite value there is none.
  ramp() {
    const { header, range } = this;
    if (!(range.low < Infinity)) return [];
    const real = (value) => numberText(header.log ? Number((10 ** value).toPrecision(2)) : Number(value.toPrecision(2)));
    const [pale, strong] = header.lowIsWorst ? [range.high, range.low] : [range.low, range.high];
    return [make("span", "", `pale ${real(pale)} `), make("span", "aw-ramp"), make("span", "", ` ${real(strong)} strong · `)];
  }

  x(step) {
    const [first, last] = [this.edges[0], this.edges[this.edges.length - 1]];
    return NAMES + ((step - first) / (last - first)) * (this.width - NAMES);
  }

  cells(pen) {
    const columns = this.edges.length - 1;
    const { low, high, at } = this.range;
    const [r, g, b] = this.palette.skip.match(/\w\w/g).map((pair) => parseInt(pair, 16));
    this.values.forEach((value, n) => {
      const place = at(value);
      if (Number.isNaN(value)) return;
      const share = (place - low) / (high - low);
      const strength = this.header.lowIsWorst ? 1 - share : share;
      const column = n % columns;
      const left = this.x(this.edges[column]);
      pen.fillStyle = Number.isFinite(place) ? `rgba(${r},${g},${b},${0.06 + 0.94 * strength})` : this.odd(place);
      pen.fillRect(left, Math.floor(n / columns) * this.row, this.x(this.edges[column + 1]) - left + 0.5, this.row - 1);
    });
  }

  // Not finite is worse than any shade; a zero on a log axis is paler than any.
  odd(place) {
    const isZero = this.header.log && place < 0;
    return isZero ? this.palette.grid : this.palette.ink;
  }

  names(pen) {
    const every = Math.ceil(13 / this.row);
    pen.font = `11.5px ${getComputedStyle(this.place).fontFamily}`;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    this.header.layers.forEach((layer, n) => {
      const chosen = layer === this.header.layer;
      if (n % every && !chosen) return;
      pen.fillStyle = chosen ? this.palette.scale : this.palette.muted;
      pen.fillText(shortened(layer, LETTERS), NAMES - 8, (n + 0.5) * this.row);
    });
  }

  axis(pen, top) {
    pen.fillStyle = this.palette.muted;
    pen.textBaseline = "top";
    pen.textAlign = "center";
    const ends = [this.edges[0], this.edges[this.edges.length - 1]];
    linearTicks(ends, 6).filter(Number.isInteger).forEach((step, n) => {
      pen.fillText((n ? "" : "step ") + countText(step), Math.min(this.width - 16, this.x(step)), top + 6);
    });
    if (this.header.step !== null && this.header.step >= ends[0] && this.header.step <= ends[1]) {
      pen.fillStyle = this.palette.ink;
      pen.fillRect(this.x(this.header.step), 0, 1, top);
    }
  }

  // --- what the reader does ----------------------------------------------------------------------

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const row = Math.floor(y / this.row);
    if (!(row >= 0 && row < this.header.layers.length)) return null;
    const columns = this.edges.length - 1;
    let column = 0;
    while (column < columns - 1 && this.x(this.edges[column + 1]) <= x) column++;
    const step = Math.ceil((this.edges[column] + this.edges[column + 1]) / 2 - 0.5);
    return { x, y, layer: this.header.layers[row], step, value: this.values[row * columns + column] };
  }

  hover(event) {
    const cell = this.cellAt(event);
    this.label.hidden = !cell;
    if (!cell) return;
    const value = Number.isNaN(cell.value) ? "not sampled" : Number.isFinite(cell.value) ? numberText(cell.value) : "not finite";
    this.label.replaceChildren(make("div", "aw-label-step", `step ${countText(cell.step)}`), make("div", "", cell.layer), make("b", "", value));
    const flip = cell.x + this.label.offsetWidth + 20 > this.width;
    const left = cell.x + (flip ? -this.label.offsetWidth - 12 : 14);
    this.label.style.transform = `translate(${left}px, ${cell.y + 34}px)`;
  }

  choose(event) {
    const cell = this.cellAt(event);
    if (cell) this.ask("cell", { layer: cell.layer, step: cell.step });
  }
}
