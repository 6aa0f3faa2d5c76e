// The layers in one of the views that their run has (usable loss scales, what casts lose, what if), and
// the switch between them.

import { countText, powerText, powerTicks } from "./axis.js";
import { make, makeSelect, optionsOf, shortened, tableHead } from "./elements.js";

const NAME_LETTERS = 24;

export class LayerViews {
  constructor(place) {
    this.choices = make("div", "aw-view-switch");
    this.choices.setAttribute("role", "group");
    this.choices.setAttribute("aria-label", "View of the layers");
    this.place = make("div", "aw-views", this.choices);
    place.append(this.place);
  }

  show(header) {
    this.offer(header);
    if (this.kind !== header.component) {
      this.body?.place.remove();
      this.kind = header.component;
      this.body = this.kind === "windows" ? new ScaleWindows() : new FormatLosses();
      this.body.ask = (kind, value) => this.ask(kind, value);
      this.place.append(this.body.place);
    }
    this.body.show(header);
    this.place.dataset.view = header.view; // for whoever looks from outside
  }

  // The buttons stay, so that the keyboard stays on the one that was pressed.
  offer({ views, view }) {
    this.choices.hidden = !views.length;
    if (this.offered !== JSON.stringify(views)) {
      this.offered = JSON.stringify(views);
      this.choices.replaceChildren(...views.map(([key, words]) => this.button(key, words)));
    }
    for (const button of this.choices.children) button.setAttribute("aria-pressed", button.dataset.view === view);
  }

  button(key, words) {
    const button = make("button", "", words);
    Object.assign(button, { type: "button" });
    button.dataset.view = key;
    button.addEventListener("click", () => this.ask("view", key));
    return button;
  }

  close() {
    this.place.remove();
  }
}

// When the layers were seen so, and how many are not shown.
function shownText(step, hidden, which) {
  const at = step === null ? "at the end of the record" : `as of step ${countText(step)}`;
  return `Shown ${at}.${hidden ? ` ${countText(hidden)} layers ${which} are not shown.` : ""}`;
}

// Room for the longest of these names, which are so many letters long.
function setNameWidth(place, letters) {
  place.style.setProperty("--aw-names", `${0.41 * Math.max(...letters.map((count) => Math.min(NAME_LETTERS, count))) + 1}rem`);
}

// --- usable loss scales ---------------------------------------------------------------------------

const EDGE = 8; // powers of two below 1 that are still worth room
const MEANING = "Left of its bar a layer loses small gradients, right of it they overflow. A bar that fades out to the left loses none, however small the scale.";
const LEVEL = " Established: the highest scale with which training worked for a while. A bar that ends at or below it caps the scale: the layer has begun to overflow at a scale that had worked.";

// One bar a layer, from the smallest to the largest scale at which it neither loses its gradients nor
// overflows; the scale as an upright line; what limits it in red.
class ScaleWindows {
  constructor() {
    this.place = make("div", "aw-windows");
  }

  show(header) {
    const { rows, level, scale, step, hidden } = header;
    const range = rangeOf(header);
    const share = (value) => `${(100 * (Math.min(range[1], Math.max(range[0], value)) - range[0])) / (range[1] - range[0])}%`;
    const lines = make("div", "aw-window-lines");
    if (level !== null && level !== scale) lines.append(upright(`established ${powerText(level)}`, level, share, "level"));
    if (scale !== null) {
      const off = scale < range[0] ? "◂ " : ""; // far below all windows: at the edge, and said
      lines.append(upright(`${off}scale now ${powerText(scale)}`, scale, share, "now"));
    }
    const axis = make("div", "aw-window-axis");
    for (const tick of powerTicks(range)) {
      const label = make("span", "", powerText(tick));
      label.style.left = share(tick);
      axis.append(label);
    }
    const marked = make("span", rows.some((row) => row.caps) ? "aw-caps" : "", header.marked);
    const title = make("div", "aw-chart-title", make("b", "", "Usable loss scales by layer"), marked);
    const sentence = header.sentence ? [make("p", "aw-view-sentence", header.sentence)] : [];
    const bars = rows.map((row) => this.row(row, share, row.layer === header.chosen));
    const chart = make("div", "aw-window-rows", ...bars, lines, axis);
    setNameWidth(chart, rows.map(({ layer }) => layer.length));
    const note = make("div", "aw-muted", `${MEANING}${level === null ? "" : LEVEL} ${shownText(step, hidden, "with more room")}`);
    this.place.classList.toggle("calm", header.calm);
    this.place.replaceChildren(title, ...sentence, chart, note);
  }

  row({ layer, low, high, caps, named }, share, isChosen) {
    const button = make("button", caps ? "aw-window caps" : named ? "aw-window named" : "aw-window");
    const isEmpty = low !== null && low > high;
    const says = isEmpty
      ? `no scale: its gradients are lost below ${powerText(Math.round(low))} and overflow above ${powerText(Math.round(high))}`
      : `${low === null ? "" : `from ${powerText(Math.ceil(low))} `}up to ${powerText(Math.floor(high))}`;
    button.title = `${layer}: ${says}`;
    if (isChosen) button.setAttribute("aria-current", "true");
    const bar = make("span", low === null ? "aw-window-bar open" : isEmpty ? "aw-window-bar empty" : "aw-window-bar");
    const [left, right] = isEmpty ? [high, low] : [low ?? -Infinity, high];
    bar.style.left = share(left);
    bar.style.right = `calc(100% - ${share(right)})`;
    button.append(make("span", "aw-window-name", shortened(layer, NAME_LETTERS)), make("span", "aw-window-track", bar));
    button.addEventListener("click", () => this.ask("layer", layer));
    return button;
  }
}

// What holds all windows; the scale, when it fell far below them, stands at the edge.
function rangeOf({ rows, level, scale }) {
  const lows = rows.map((row) => row.low).filter((low) => low !== null);
  const values = [...lows, ...rows.map((row) => row.high), ...(level === null ? [] : [level])];
  const low = Math.min(0, ...values, Math.max(scale ?? 0, -EDGE));
  return [Math.floor(low) - 1, Math.ceil(Math.max(16, ...values)) + 1];
}

function upright(text, value, share, kind) {
  const line = make("div", `aw-window-line ${kind}`, make("span", "", text));
  line.style.left = share(value);
  if (parseFloat(share(value)) > 50) line.classList.add("late"); // its words read to the left
  return line;
}

// --- what formats below sixteen bits lose ---------------------------------------------------------

const LEAST_SHARE = 0.01; // of a loss that has a bar; the number tells smaller ones

// A row a layer, a cell an operand or a format, its number over a bar. Losses at the small end grow to
// the left of a cell's middle, those at the large end to the right.
class FormatLosses {
  constructor() {
    this.title = make("div", "aw-chart-title");
    this.sentence = make("p", "aw-view-sentence");
    this.table = make("table", "aw-losses");
    this.note = make("div", "aw-muted");
    this.roles = makeSelect("Role of the values", (role) => this.ask("role", role));
    this.place = make("div", "aw-windows aw-loss-view", this.title, this.sentence, this.roles, this.table, this.note);
  }

  show(header) {
    const { title, fault, sentence, columns, rows, note, step, hidden } = header;
    const isNamed = fault && rows.some(({ layer }) => layer === fault.layer);
    this.title.replaceChildren(make("b", "", title), ...(isNamed ? [make("span", "aw-caps", `✕ ${fault.words}`)] : []));
    this.sentence.textContent = sentence;
    this.offerRoles(header);
    this.place.classList.toggle("what-if", header.view === "what-if");
    const focused = this.table.contains(document.activeElement) ? document.activeElement.title : null;
    const head = tableHead(make("th", "aw-spoken-head", "layer"), ...columns.map((words) => make("th", "", words)));
    this.table.replaceChildren(head, make("tbody", "", ...rows.map((row) => this.row(row, header))));
    setNameWidth(this.table, [5, ...rows.map(({ layer }) => layer.length + (layer === fault?.layer ? 2 : 0))]);
    if (focused !== null) [...this.table.querySelectorAll("button")].find((button) => button.title === focused)?.focus();
    this.note.textContent = `${note} ${shownText(step, hidden, "that lose less")}`;
  }

  offerRoles({ roles = [], role }) {
    this.roles.hidden = !roles.length;
    if (this.offered !== JSON.stringify(roles)) {
      this.offered = JSON.stringify(roles);
      this.roles.replaceChildren(...optionsOf(roles));
    }
    if (roles.length) this.roles.value = role;
  }

  row({ layer, says, cells }, { fault, chosen, isDiverging }) {
    const kind = layer === fault?.layer ? "aw-window-name fault" : "aw-window-name";
    const name = make("button", kind, make("bdi", "", shortened(layer, NAME_LETTERS)));
    Object.assign(name, { type: "button", title: says ? `${layer}: ${says}` : layer });
    if (layer === chosen) name.setAttribute("aria-current", "true");
    name.addEventListener("click", () => this.ask("layer", layer));
    const head = Object.assign(make("th", "", name), { scope: "row" });
    return make("tr", "", head, ...cells.map((cell) => cellOf(cell, isDiverging)));
  }
}

function cellOf({ text, says, flushed, cut, isOver }, isDiverging) {
  const bars = isDiverging ? [barOf("flushed", flushed, 50, "right"), barOf("cut", cut, 50, "left")] : [barOf("flushed", flushed, 100, null)];
  return Object.assign(make("td", isOver ? "over" : "", ...bars, make("span", "", text)), { title: says });
}

// A bar from one side of a cell or, of half its room, from the middle.
function barOf(kind, share, room, fromMiddle) {
  if (share < LEAST_SHARE) return null;
  const bar = make("i", `aw-loss-bar ${kind}`);
  bar.style.width = `${room * Math.min(1, share)}%`;
  bar.style[fromMiddle ?? "left"] = fromMiddle ? "50%" : "0";
  return bar;
}
