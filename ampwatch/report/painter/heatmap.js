// The layers over the steps: a row a layer or a folded prefix, the worst value of each stretch as a
// shade. Only the rows in view are drawn, so that thousands scroll; the axis stays in sight.

import { countText, linearTicks, numberText } from "./axis.js";
import { make, makeSelect, optionsOf, searchField, shortened, tableHead, toolButton } from "./elements.js";
import { CellPainter, rangeOf } from "./heatmap_cells.js";
import { TYPE_HEADS, TypeColumn, ViewColumn } from "./layer_columns.js";
import { LayerTree, PLAIN, textOf, turned, viewOf } from "./layer_tree.js";

const ROW = 22; // pixels
const INDENT = 10;
const COUNT_ROOM = 150; // of the names, in which a fold's count is said too
const DEEPEST = 6; // that is still told by an indent
const LETTER = 6.5;
const TYPING_MS = 400; // who rests for so long has typed
const TICK_ROOM = 90;
const LEAP = 10; // rows, for Page Up and Down
const TYPES_FROM = 800; // pixels of width; a narrower map leaves out the data types,
const CELLS_FROM = 540; // and one on a phone what formats lose

export class Heatmap {
  constructor(place) {
    this.place = make("div", "aw-heatmap");
    this.title = make("div", "aw-chart-title");
    this.beside = new ViewColumn();
    this.head = make("div", "aw-map-head");
    this.map = make("div", "aw-map");
    this.pins = strip("aw-map-pins");
    this.scroller = make("div", "aw-map-scroll");
    Object.assign(this.scroller, { tabIndex: 0, role: "application" });
    this.scroller.setAttribute("aria-roledescription", "heat map");
    this.sheet = make("div", "aw-map-sheet");
    this.body = strip("aw-map-body");
    this.sheet.append(this.body.place);
    this.scroller.append(this.sheet);
    this.axis = make("div", "aw-map-axis");
    this.viewAxis = make("div", "aw-map-view-axis");
    this.axis.setAttribute("aria-hidden", "true"); // each cell's step is said with it
    this.label = make("div", "aw-label");
    this.label.hidden = true;
    this.spoken = make("div", "aw-spoken");
    this.spoken.setAttribute("aria-live", "polite");
    this.map.append(this.head, this.pins.place, this.scroller, this.axis, this.viewAxis, this.label);
    this.place.append(this.title);
    this.tools = new LayerTools(this.place, this);
    this.place.append(this.map, this.spoken);
    this.table = new LayerTable(this.place, this);
    place.append(this.place);
    this.view = PLAIN;
    this.layer = this.step = null; // those that the reader chose
    this.cursor = null; // the row and the column where the keys are
    this.count = 0; // of the reader's choices: a message that knows fewer is behind
    this.watch();
  }

  watch() {
    this.resize = new ResizeObserver(() => this.draw());
    this.resize.observe(this.place);
    this.scroller.addEventListener("scroll", () => this.drawSoon());
    this.scroller.addEventListener("keydown", (event) => this.onKey(event));
    this.scroller.addEventListener("focus", () => this.say());
    this.scroller.addEventListener("blur", () => this.draw());
    for (const part of [this.pins, this.body]) {
      part.canvas.addEventListener("pointermove", (event) => this.hover(event, part));
      part.canvas.addEventListener("pointerleave", () => (this.label.hidden = true));
      part.canvas.addEventListener("click", (event) => this.click(event, part));
      for (const column of [part.names, part.view]) {
        column.addEventListener("mousedown", (event) => event.preventDefault()); // the map keeps the focus
        column.addEventListener("click", (event) => this.press(event, part, column));
      }
    }
  }

  // Take in a message. One whose grid never came (a tab asleep loses messages) is asked for anew.
  show(header, arrays) {
    if (header.hasBase) {
      const columns = arrays.edges.length - 1;
      this.tree = new LayerTree({ layers: header.layers, values: arrays.values, columns, isLow: header.lowIsWorst });
      Object.assign(this, { base: header.base, edges: arrays.edges, steps: arrays.steps, range: rangeOf(arrays.values, header.log, header.limit) });
      this.has = hasOf(arrays.values, columns, header.limit);
      this.types = new TypeColumn(header.types, arrays.type);
      this.beside.show(header.beside, arrays);
    }
    if (this.base !== header.base) {
      this.ask("lost", header.base);
      return;
    }
    this.follow(header);
    this.header = header;
    this.draw();
  }

  // What the address says is followed (Back, Forward, a link), unless the reader has gone on since.
  follow(header) {
    const { view, layer, step, heard } = header;
    const isOther = header.name !== this.header?.name;
    if (isOther) this.count = heard;
    else if (heard < this.count || this.differs({ map: view, layer, step: step === null ? null : String(step) })) return;
    Object.assign(this, { view: viewOf(view), layer, step });
  }

  close() {
    this.resize.disconnect();
    this.place.remove();
  }

  // --- drawing -----------------------------------------------------------------------------------

  drawSoon() {
    this.asked ??= requestAnimationFrame(() => {
      this.asked = null;
      this.drawRows();
    });
  }

  draw() {
    if (!this.header || !this.place.clientWidth) return;
    const { header, view } = this;
    this.isDark = getComputedStyle(this.place).colorScheme.includes("dark");
    this.palette = header.palette[this.isDark ? "dark" : "light"];
    this.rows = this.tree.rows(view);
    this.cells = new CellPainter({ palette: this.palette, range: this.range, isLog: header.log, isLow: header.lowIsWorst, limit: header.limit });
    this.words();
    this.tools.show(view, this.told());
    this.map.hidden = view.isTable;
    this.table.place.hidden = !view.isTable;
    if (view.isTable) this.table.show();
    else this.drawMap();
    this.place.dataset.rows = this.rows.length; // for whoever looks from outside
    this.place.dataset.view = header.beside?.view ?? "";
  }

  // Beside the cells there is as much as the page has room for.
  drawColumns() {
    const { clientWidth } = this.place;
    this.hasTypes = clientWidth >= TYPES_FROM;
    const isNarrow = clientWidth < CELLS_FROM;
    this.hasView = Boolean(this.beside.view) && (this.beside.isBars || !isNarrow);
    this.place.style.setProperty("--aw-map-types", this.hasTypes ? "11rem" : "0rem");
    this.place.style.setProperty("--aw-map-view", this.hasView ? this.beside.width(isNarrow) : "0rem");
    this.beside.head.hidden = !this.hasView;
    const types = make("div", "aw-map-types", ...(this.hasTypes ? TYPE_HEADS.map((words) => make("span", "", words)) : []));
    const view = make("div", `aw-map-view${this.beside.isBars ? "" : " cells"}`, ...(this.hasView ? this.beside.heads() : []));
    this.head.replaceChildren(make("div", "aw-map-names", "layer"), types, view);
    this.place.classList.toggle("what-if", this.header.beside?.view === "what-if");
    this.viewAxis.replaceChildren(...(this.hasView ? [this.beside.axis()] : []));
  }

  drawMap() {
    this.drawColumns();
    const height = this.rows.length * ROW;
    this.sheet.style.height = `${height}px`;
    const room = parseFloat(getComputedStyle(this.scroller).maxHeight);
    const isAll = !(height > room);
    this.body.place.style.height = `${isAll ? height : room}px`;
    const marked = [this.layer, this.header.fault?.layer].filter((layer) => layer != null);
    const apart = [...new Set(marked)].filter((layer) => !isAll || !this.rows.some((row) => row.name === layer));
    this.pinned = apart.map((layer) => this.tree.rowNamed(layer));
    this.pins.place.style.height = `${this.pinned.length * ROW}px`;
    this.pins.place.hidden = !this.pinned.length;
    this.width = this.axis.clientWidth;
    for (const { canvas } of [this.pins, this.body]) canvas.style.width = `${this.width}px`;
    this.lefts = Array.from(this.edges, (edge) => Math.round(this.x(edge)));
    this.drawRows();
    this.drawAxis();
    this.speakable();
  }

  drawRows() {
    const { scrollTop } = this.scroller;
    const first = Math.floor(scrollTop / ROW);
    const shown = this.rows.slice(first, first + Math.ceil(this.body.place.clientHeight / ROW) + 1);
    const cursor = this.cursor && document.activeElement === this.scroller ? { row: this.cursor.row - first, column: this.cursor.column } : null;
    this.drawStrip(this.pins, this.pinned, 0, null);
    this.drawStrip(this.body, shown, first * ROW - scrollTop, cursor);
  }

  drawStrip(part, rows, top, cursor) {
    Object.assign(part, { rows, top });
    const { step } = this;
    const [first, last] = this.header.axis;
    const at = step !== null && step >= first && step <= last ? this.x(step) : null;
    part.names.replaceChildren(...rows.map((row, n) => this.name(row, top + n * ROW, part.names.clientWidth)));
    part.types.replaceChildren(...(this.hasTypes ? rows.map((row, n) => placed(this.types.row(row), top + n * ROW)) : []));
    part.view.replaceChildren(...(this.hasView ? rows.map((row, n) => placed(this.beside.row(row), top + n * ROW)) : []));
    const line = this.hasView && rows.length ? this.beside.line() : null;
    if (line) part.view.append(line);
    this.cells.rows(part.canvas, rows, { lefts: this.lefts, height: ROW, top, step: at, cursor });
  }

  name(row, top, width) {
    const { layer, header: { fault } } = this;
    const indent = Math.min(DEEPEST, row.depth) * INDENT;
    const fold = row.hasInside ? Object.assign(foldOf(row), { tabIndex: -1 }) : make("span", "aw-map-fold");
    const kind = (row.name === layer ? " chosen" : "") + (row.name === fault?.layer ? " fault" : "");
    const button = make("button", `aw-map-name${kind}`);
    Object.assign(button, { tabIndex: -1, title: row.isFold ? `${row.name}: ${countText(row.count)} layers` : row.name });
    const count = row.isFold && width > COUNT_ROOM ? ` ${countText(row.count)}` : "";
    const letters = Math.floor((width - indent - 26) / LETTER) - count.length - 2 * kind.split(" ").length + 2;
    button.append(make("bdi", "", shortened(row.label || "(no name)", Math.max(4, letters))));
    if (count) button.append(make("span", "aw-map-count", count));
    button.dataset.name = row.name;
    const line = make("div", "aw-map-row", fold, button);
    line.style.paddingLeft = `${indent}px`;
    return placed(line, top);
  }

  drawAxis() {
    const marks = linearTicks(this.header.axis, Math.max(2, Math.floor(this.width / TICK_ROOM))).filter(Number.isInteger);
    this.axis.replaceChildren(...marks.map((step, n) => {
      const mark = make("span", "", (n ? "" : "step ") + countText(step));
      mark.style.left = `${this.x(step)}px`;
      return mark;
    }));
  }

  x(step) {
    const [first, last] = this.header.axis;
    return Math.min(this.width, Math.max(0, ((step - first) / (last - first)) * this.width));
  }

  // --- words -------------------------------------------------------------------------------------

  what() {
    const { label, unit } = this.header;
    return unit ? `${label}, ${unit}` : label;
  }

  // What is drawn and how to read it: all that is seen has its word here, on a phone as well.
  words() {
    const { header, has } = this;
    const keys = [...this.ramp()];
    if (has.zero && header.log) keys.push(keyOf("zero", this.rows.some((row) => row.isFold) ? "zero (at the foot: of some inside)" : "zero"));
    if (has.over) keys.push(keyOf("over", `over ${numberText(header.limit)}`));
    if (has.odd) keys.push(keyOf("odd", "not finite"));
    if (has.absent) keys.push(keyOf("absent", "no sample"));
    if (header.fault) keys.push(make("span", "aw-map-fault", `✕ ${header.fault.words}`));
    const bold = make("b", "", this.what());
    this.title.replaceChildren(bold, ...keys, this.beside.head);
  }

  // What the shades mean; without a finite value there is none.
  ramp() {
    if (!this.range) return [];
    const { header, range: [low, high] } = this;
    const real = (value) => numberText(Number((header.log ? 10 ** value : value).toPrecision(2)));
    const ends = header.lowIsWorst ? [high, low] : [low, high];
    const words = ends.map((value) => make("span", "", real(value)));
    return [make("span", "aw-map-key", words[0], make("span", "aw-ramp"), words[1])];
  }

  // How many layers there are, how many of them have this quantity, and how many rows they take.
  told() {
    const total = this.tree.layers.length;
    const filled = this.has.layers;
    const all = filled < total ? `${countText(filled)} of ${countText(total)} layers have a value` : counted(total, "layer");
    if (this.view.find.trim()) return `${counted(this.rows.length, "layer")} of ${countText(total)} found`;
    const folds = this.rows.filter((row) => row.isFold).length;
    return folds ? `${all}, in ${counted(this.rows.length, "row")}; ${countText(folds)} folded, which show the worst inside` : all;
  }

  said(value) {
    return Number.isNaN(value) ? "no sample" : Number.isFinite(value) ? numberText(value) : "not finite";
  }

  speakable() {
    const keys = "Arrows move from cell to cell, Enter opens the layer, Space folds or unfolds a row. The button Table shows the same as a table.";
    this.scroller.setAttribute("aria-label", `Heat map of ${this.what()}: ${counted(this.rows.length, "row")} over steps ${countText(this.header.axis[0])} to ${countText(this.header.axis[1])}. ${keys}`);
  }

  say() {
    if (!this.rows?.length) return;
    this.cursor ??= { row: 0, column: this.edges.length - 2 };
    const row = this.rows[this.cursor.row];
    const cell = this.cell(row, this.cursor.column);
    const fold = row.isFold ? `, folded, ${countText(row.count)} layers, worst in ${cell.layer}` : row.hasInside ? ", unfolded" : "";
    this.spoken.textContent = `${row.name}${fold}, ${this.stepsText(this.cursor.column)}, ${this.header.label} ${this.said(cell.value)}`;
    this.drawRows();
  }

  // --- what the reader does ----------------------------------------------------------------------

  // The view is changed at once, and told where the page keeps it.
  change(parts) {
    this.view = { ...this.view, ...parts };
    if (this.cursor) this.cursor.row = 0;
    if ("find" in parts || "isWorstFirst" in parts) this.scroller.scrollTop = 0;
    this.tell("find" in parts ? TYPING_MS : 0);
    this.draw();
  }

  // A layer, and the step of a cell; a name says nothing of the step.
  choose(layer, step = this.step) {
    Object.assign(this, { layer, step });
    this.tell(0);
    this.draw();
  }

  // All that was chosen is told at once: what is told twice in a row may be heard in one.
  tell(wait) {
    this.count++; // until it is heard, no message changes what was chosen
    clearTimeout(this.telling);
    this.telling = setTimeout(() => {
      const { view, layer, step, count } = this;
      this.report("look", { view: textOf(view), layer, step, count });
    }, wait);
  }

  // Fold or unfold a row; it stays where it is, and so do the keys.
  turn({ name }) {
    const { cursor } = this;
    this.cursor = null;
    this.change(turned(this.view, name));
    if (cursor) this.cursor = { ...cursor, row: Math.max(0, this.rows.findIndex((row) => row.name === name)) };
    if (document.activeElement === this.scroller) this.say();
  }

  chooseFirst() {
    if (this.rows.length) this.choose(this.rows[0].name);
  }

  press(event, part, column) {
    const row = part.rows[[...column.children].findIndex((one) => one.contains(event.target))];
    if (!row) return;
    if (row.hasInside && (event.target.closest(".aw-map-fold") || !row.isLayer)) this.turn(row);
    else if (column === part.view || event.target.closest(".aw-map-name")) this.choose(row.name);
  }

  // A cell of a row: its layer, which of a fold is the worst one inside, its step and its value.
  cell(row, column) {
    return { layer: this.tree.layerAt(row, column), column, step: this.steps[column], value: row.values ? row.values[column] : NaN };
  }

  // The steps of a column; where several were sampled, from the first to the last that it may hold.
  stepsText(column) {
    const first = this.steps[column];
    const last = Math.ceil(this.edges[column + 1]) - 1;
    return this.header.isMerged && last > first ? `steps ${countText(first)} to ${countText(last)}, the worst` : `step ${countText(first)}`;
  }

  cellAt(event, part) {
    const box = part.canvas.getBoundingClientRect();
    const row = part.rows[Math.floor((event.clientY - box.top - part.top) / ROW)];
    if (!row) return null;
    const at = event.clientX - box.left;
    const after = this.lefts.findIndex((left) => left > at);
    return { row, ...this.cell(row, Math.max(0, (after < 0 ? this.lefts.length - 1 : after) - 1)) };
  }

  hover(event, part) {
    const cell = this.cellAt(event, part);
    this.label.hidden = !cell;
    if (!cell) return;
    const fold = cell.row.isFold ? [make("div", "aw-label-step", `the worst of ${countText(cell.row.count)} in ${shortened(cell.row.name, 40)}`)] : [];
    const zero = cell.row.isFold && this.header.log && cell.row.zeros[cell.column] ? [make("div", "aw-label-step", "some inside are 0 here")] : [];
    const name = make("div", "", make("bdi", "", shortened(cell.layer, 60)));
    this.label.replaceChildren(make("div", "aw-label-step", this.stepsText(cell.column)), name, make("b", "", this.said(cell.value)), ...fold, ...zero);
    const recipe = this.types.recipeOf(cell.row);
    if (recipe) this.label.append(make("div", "aw-label-step", recipe));
    const box = this.map.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const wide = this.label.offsetWidth;
    const left = x + wide + 20 > box.width ? Math.max(0, x - wide - 12) : x + 14;
    this.label.style.transform = `translate(${left}px, ${y + 18}px)`;
  }

  click(event, part) {
    const cell = this.cellAt(event, part);
    if (cell) this.choose(cell.layer, cell.step);
  }

  onKey(event) {
    const act = event.ctrlKey || event.metaKey || event.altKey ? null : KEYS[event.key];
    if (!act || !this.rows.length) return;
    event.preventDefault();
    this.cursor ??= { row: 0, column: this.edges.length - 2 };
    act(this, this.cursor);
  }

  move(rows, columns) {
    const { cursor } = this;
    cursor.row = Math.min(this.rows.length - 1, Math.max(0, cursor.row + rows));
    cursor.column = Math.min(this.edges.length - 2, Math.max(0, cursor.column + columns));
    const [top, room] = [cursor.row * ROW, this.body.place.clientHeight];
    const { scroller } = this;
    scroller.scrollTop = Math.max(Math.min(scroller.scrollTop, top), top + ROW - room);
    this.say();
  }
}

const KEYS = {
  ArrowUp: (map) => map.move(-1, 0),
  ArrowDown: (map) => map.move(1, 0),
  ArrowLeft: (map) => map.move(0, -1),
  ArrowRight: (map) => map.move(0, 1),
  PageUp: (map) => map.move(-LEAP, 0),
  PageDown: (map) => map.move(LEAP, 0),
  Home: (map) => map.move(0, -Infinity),
  End: (map) => map.move(0, Infinity),
  " ": (map, { row }) => map.rows[row].hasInside && map.turn(map.rows[row]),
  Enter: (map, { row, column }) => {
    const { layer, step } = map.cell(map.rows[row], column);
    map.choose(layer, step);
  },
};

// Names, data types, cells, and the view beside them.
function strip(className) {
  const [names, types, view] = ["names", "types", "view"].map((name) => make("div", `aw-map-${name}`));
  const canvas = make("canvas");
  const place = make("div", `aw-map-strip ${className}`, names, types, canvas, view);
  return { place, names, types, canvas, view, rows: [], top: 0 };
}

function placed(line, top) {
  line.style.transform = `translateY(${top}px)`;
  return line;
}

function foldOf(row) {
  const button = make("button", "aw-map-fold", row.isOpen ? "▾" : "▸");
  button.setAttribute("aria-expanded", row.isOpen);
  button.setAttribute("aria-label", `${row.name}, ${countText(row.count)} layers`);
  return button;
}

function keyOf(kind, words) {
  return make("span", "aw-map-key", make("span", `aw-map-swatch ${kind}`), make("span", "", words));
}

// What occurs among the values, and how many layers have any; of the others nothing is said.
function hasOf(values, columns, limit) {
  const has = { zero: false, odd: false, absent: false, over: false, layers: 0 };
  for (let begin = 0; begin < values.length; begin += columns) {
    const row = values.subarray(begin, begin + columns);
    if (row.every((value) => value !== value)) continue;
    has.layers++;
    for (const value of row) {
      if (value === 0) has.zero = true;
      else if (value !== value) has.absent = true;
      else if (!Number.isFinite(value)) has.odd = true;
      else if (limit !== null && value > limit) has.over = true;
    }
  }
  return has;
}

const counted = (count, word) => `${countText(count)} ${word}${count === 1 ? "" : "s"}`;

// --- tools --------------------------------------------------------------------------------------

// Over the heat map: find a layer by name, order, fold and unfold all, and the map as a table.

class LayerTools {
  constructor(place, map) {
    const label = "Find a layer by a part of its name; Enter opens the first";
    this.find = searchField("Find a layer", () => map.change({ find: this.find.value }), label);
    this.find.addEventListener("keydown", ({ key }) => {
      if (key === "Enter" && this.find.value.trim()) map.chooseFirst();
      else if (key === "ArrowDown") map.scroller.focus();
    });
    this.order = makeSelect("Order of the layers", (value) => map.change({ isWorstFirst: value === "worst" }));
    this.order.append(...optionsOf([["model", "in the model's order"], ["worst", "worst first"]]));
    this.open = toolButton("Unfold all", () => map.change({ unfolded: "all", turned: [] }));
    this.shut = toolButton("Fold all", () => map.change({ unfolded: "none", turned: [] }));
    this.table = toolButton("Table", () => map.change({ isTable: this.table.getAttribute("aria-pressed") !== "true" }));
    this.told = make("span", "aw-map-told");
    this.told.setAttribute("role", "status");
    place.append(make("div", "aw-tools aw-map-tools", this.find, this.order, this.open, this.shut, this.table, this.told));
  }

  show(view, told) {
    if (document.activeElement !== this.find) this.find.value = view.find; // else the reader is typing
    this.order.value = view.isWorstFirst ? "worst" : "model";
    this.table.setAttribute("aria-pressed", view.isTable);
    if (this.told.textContent !== told) this.told.textContent = told;
  }
}

// --- the table ----------------------------------------------------------------------------------

// The heat map as a table, for who hears the page or wants numbers: the same rows, the worst of each of
// a few stretches of steps.

const STRETCHES = 8;
const TABLE_LETTERS = 40; // of a name; all of it is its title
const TABLE_ROWS = 100; // at first; a button brings as many more

class LayerTable {
  constructor(place, map) {
    this.place = make("div", "aw-map-table");
    this.map = map;
    this.most = TABLE_ROWS;
    this.place.hidden = true;
    place.append(this.place);
  }

  show() {
    const { map } = this;
    const caption = `${map.what()} of each layer, the worst of each stretch of steps`;
    const held = this.place.contains(document.activeElement) ? document.activeElement.dataset.row : null;
    const stretches = stretchesOf(map.edges);
    const body = make("tbody", "", ...map.rows.slice(0, this.most).map((row) => this.row(row, stretches)));
    const table = make("table", "aw-table", make("caption", "aw-muted", caption), headOf(stretches, map.types.isCast), body);
    this.place.replaceChildren(table, ...this.more());
    this.place.tabIndex = 0; // it scrolls
    this.place.setAttribute("role", "region");
    this.place.setAttribute("aria-label", caption);
    if (held !== null) this.place.querySelector(`[data-row="${CSS.escape(held)}"]`)?.focus();
  }

  row(row, stretches) {
    const head = make("th", "", row.hasInside && this.fold(row), row.isLayer ? this.name(row) : nameOf(row));
    Object.assign(head, { scope: "row", title: row.name });
    head.style.paddingLeft = `${row.depth}rem`;
    const recipe = this.map.types.isCast ? [make("td", "aw-map-recipe", this.map.types.recipeOf(row) || "-")] : [];
    return make("tr", "", head, ...recipe, ...(hasValue(row) ? this.cells(row, stretches) : [without(row, stretches)]));
  }

  cells({ values }, stretches) {
    return stretches.map(({ first, last }) => make("td", "", this.map.said(this.map.tree.worstOf(values, first, last))));
  }

  fold(row) {
    const button = foldOf(row);
    button.dataset.row = `fold ${row.name}`;
    button.addEventListener("click", () => this.map.turn(row));
    return button;
  }

  name(row) {
    const button = make("button", "aw-map-name", nameOf(row));
    button.title = row.name;
    button.dataset.row = row.name;
    button.addEventListener("click", () => this.map.choose(row.name));
    return button;
  }

  more() {
    const rest = this.map.rows.length - this.most;
    if (rest <= 0) return [];
    return [toolButton(`show ${countText(Math.min(TABLE_ROWS, rest))} more of ${countText(rest)} rows`, () => {
      this.most += TABLE_ROWS;
      this.show();
    })];
  }
}

function nameOf(row) {
  return make("bdi", "", `${shortened(row.label || "(no name)", TABLE_LETTERS)}${row.isFold ? ` (worst of ${countText(row.count)})` : ""}`);
}

const hasValue = ({ values }) => Boolean(values) && values.some((value) => value === value);

// Of a prefix that is no layer only what is inside has numbers.
function without({ isOpen }, stretches) {
  const cell = make("td", "aw-muted", isOpen ? "unfolded" : "no value");
  cell.colSpan = stretches.length;
  return cell;
}

function headOf(stretches, hasRecipe) {
  const steps = ({ from, to }) => (from === to ? `step ${countText(from)}` : `steps ${countText(from)} to ${countText(to)}`);
  const names = ["layer", ...(hasRecipe ? ["multiplies in"] : []), ...stretches.map(steps)];
  return tableHead(...names.map((name) => make("th", "", name)));
}

// The columns joined to a few stretches: their columns, and their steps.
function stretchesOf(edges) {
  const columns = edges.length - 1;
  const count = Math.min(STRETCHES, columns);
  return Array.from({ length: count }, (_, n) => {
    const first = Math.floor((n * columns) / count);
    const last = Math.floor(((n + 1) * columns) / count) - 1;
    const from = Math.ceil(edges[first]) + 0; // -0 is 0
    return { first, last, from, to: Math.max(from, Math.ceil(edges[last + 1]) - 1) };
  });
}
