// What stands beside the heat map, aligned with its rows: the data types of each layer, and its usable
// loss scales, or what formats lose of it. A fold shows what holds for all inside, or the worst.

import { powerText } from "./axis.js";
import { helpOf, make } from "./elements.js";
import { cellOf, stepText, upright, windowAxis, windowBar, windowRange, windowText } from "./layer_views.js";

const CELL_REM = 3.3; // of a format's column

// The places of all layers that a row stands for.
export function layersIn(row) {
  if (!row.isFold) return row.node.at < 0 ? [] : [row.node.at];
  const found = [];
  const look = (node) => {
    if (node.at >= 0) found.push(node.at);
    node.children.forEach(look);
  };
  look(row.node);
  return found;
}

// --- data types -----------------------------------------------------------------------------------

export const TYPE_HEADS = ["input", "weight", "output", "grad"];

// `kinds` are the combinations that occur, `kind` is each layer's number among them.
export class TypeColumn {
  constructor(kinds, kind) {
    const hasBoth = kinds.some(({ isOff }) => isOff) && kinds.some(({ isOff, types }) => !isOff && types.some(Boolean));
    Object.assign(this, { kinds, kind, hasBoth }); // of a run without autocast it is nothing to say
  }

  row(row) {
    const [first, ...others] = new Set(layersIn(row).map((at) => this.kind[at]));
    if (first === undefined) return make("span", "aw-types");
    if (others.length) return make("span", "aw-types", make("span", "aw-muted", "different inside"));
    const { types, recipe, isOff } = this.kinds[first];
    const chips = types.map((type) => make("i", `aw-dtype${/^(fp16|bf16|fp8)/.test(type) ? " half" : ""}`, type || "-"));
    const words = isOff ? "autocast off" : "";
    const off = isOff && this.hasBoth ? [make("i", "aw-off", "off")] : [];
    return Object.assign(make("span", "aw-types", ...chips, ...off), { title: [types.map((type, n) => `${TYPE_HEADS[n]} ${type || "none"}`).join(", "), recipe, words].filter(Boolean).join("; ") });
  }

  // In which formats below sixteen bits a row's layers multiply, in words.
  recipeOf(row) {
    return [...new Set(layersIn(row).map((at) => this.kinds[this.kind[at]].recipe))].filter(Boolean).join("; ");
  }

  get isCast() {
    return this.kinds.some(({ recipe }) => recipe);
  }
}

// --- usable loss scales, or what formats lose -----------------------------------------------------

// The view of one step: its sentence, and a bar or cells for each row.
export class ViewColumn {
  constructor() {
    this.title = make("b");
    this.at = make("span");
    this.help = helpOf("What these bars and numbers mean");
    this.head = make("div", "aw-map-view-title", this.title, this.at, this.help.place);
  }

  // `view` is null where nothing is known of the layers.
  show(view, arrays) {
    Object.assign(this, { view, arrays });
    if (!view) return;
    this.isBars = view.component === "windows";
    this.title.textContent = view.title;
    const scale = this.isBars && view.scale !== null ? `, loss scale ${powerText(view.scale)}` : "";
    this.at.textContent = `${view.more} ${stepText(view.step)}${scale}`.trim();
    this.help.says(view.note);
    if (this.isBars) this.range = windowRange(this.windows([...arrays.low.keys()]), view.scale);
  }

  width(isNarrow) {
    return this.isBars ? (isNarrow ? "7.5rem" : "12rem") : `${CELL_REM * this.view.columns.length}rem`;
  }

  windows(places) {
    const { low, high } = this.arrays;
    return places.filter((at) => high[at] === high[at]).map((at) => ({ at, low: low[at] === low[at] ? low[at] : null, high: high[at] }));
  }

  heads() {
    return this.isBars ? [make("span", "", "usable loss scales")] : this.view.columns.map((words) => make("span", "", words));
  }

  row(row) {
    return this.isBars ? this.bar(row) : this.cells(row);
  }

  // Of a fold the scales that suit all inside.
  bar(row) {
    const track = make("span", "aw-map-track");
    const windows = this.windows(layersIn(row));
    if (!windows.length) return track;
    const lows = windows.map(({ low }) => low).filter((low) => low !== null);
    const window = { low: lows.length ? Math.max(...lows) : null, high: Math.min(...windows.map(({ high }) => high)) };
    track.append(windowBar(window, this.range));
    track.title = `${row.name}: ${windowText(window)}`;
    if (windows.some(({ at }) => this.view.faults.includes(at))) track.classList.add("fault-bar");
    return track;
  }

  cells(row) {
    const { columns, kinds, isDiverging } = this.view;
    const places = layersIn(row);
    const worst = columns.map((_, column) => worstOf(places.map((at) => kinds[this.arrays.cell[at * columns.length + column]])));
    return make("span", "aw-map-cells", ...worst.map((cell) => (cell ? cellOf(cell, isDiverging, "span") : make("span", "aw-map-cell"))));
  }

  line() {
    const { view } = this;
    if (!this.isBars || view.scale === null) return null;
    return upright("", view.scale, this.range);
  }

  axis() {
    return this.isBars ? windowAxis(this.range) : make("div");
  }
}

const weightOf = ({ isOver, flushed, cut }) => (isOver ? 2 : 0) + Math.max(flushed, cut);

function worstOf(cells) {
  return cells.reduce((worst, cell) => (cell && (!worst || weightOf(cell) > weightOf(worst)) ? cell : worst), null);
}
