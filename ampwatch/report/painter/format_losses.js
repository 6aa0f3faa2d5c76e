// What formats below sixteen bits lose: a row a layer, a cell an operand or a format, its number over a
// bar. Losses at the small end grow to the left of a cell's middle, those at the large end to the right.

import { make, shortened } from "./elements.js";
import { countText } from "./ticks.js";

const NAME_LETTERS = 24;
const LEAST_SHARE = 0.01; // of a loss that has a bar; the number tells smaller ones

export class FormatLosses {
  constructor(place) {
    this.place = make("div", "aw-windows aw-loss-view");
    this.title = make("div", "aw-chart-title");
    this.sentence = make("p", "aw-view-sentence");
    this.table = make("table", "aw-losses");
    this.note = make("div", "aw-muted");
    this.roles = make("select");
    this.roles.setAttribute("aria-label", "Role of the values");
    this.roles.addEventListener("change", () => this.ask("role", this.roles.value));
    this.place.append(this.title, this.sentence, this.roles, this.table, this.note);
    place.append(this.place);
  }

  show(header) {
    const { title, fault, sentence, columns, rows, note, step, hidden } = header;
    this.title.replaceChildren(make("b", "", title), ...(fault && rows.some(({ layer }) => layer === fault.layer) ? [make("span", "aw-caps", `✕ ${fault.words}`)] : []));
    this.sentence.textContent = sentence;
    this.chooser(header);
    this.place.classList.toggle("what-if", header.view === "what-if");
    const held = this.table.contains(document.activeElement) ? document.activeElement.title : null;
    const body = make("tbody");
    body.append(...rows.map((row) => this.row(row, header)));
    this.table.replaceChildren(headOf(columns), body);
    const letters = Math.max(5, ...rows.map(({ layer }) => Math.min(NAME_LETTERS, layer.length + (layer === fault?.layer ? 2 : 0))));
    this.table.style.setProperty("--aw-names", `${0.41 * letters + 1}rem`);
    if (held !== null) [...this.table.querySelectorAll("button")].find((one) => one.title === held)?.focus();
    const at = step === null ? "at the end of the record" : `as of step ${countText(step)}`;
    this.note.textContent = `${note} Shown ${at}.${hidden ? ` ${countText(hidden)} layers that lose less are not shown.` : ""}`;
  }

  chooser({ roles = [], role }) {
    this.roles.hidden = !roles.length;
    if (this.offered !== JSON.stringify(roles)) {
      this.offered = JSON.stringify(roles);
      this.roles.replaceChildren(...roles.map(([key, words]) => Object.assign(make("option", "", words), { value: key })));
    }
    if (roles.length) this.roles.value = role;
  }

  row({ layer, says, cells }, { fault, chosen, columns, isDiverging }) {
    const made = make("tr");
    const head = make("th");
    head.scope = "row";
    const name = make("button", layer === fault?.layer ? "aw-window-name fault" : "aw-window-name");
    name.append(make("bdi", "", shortened(layer, NAME_LETTERS)));
    Object.assign(name, { type: "button", title: says ? `${layer}: ${says}` : layer });
    if (layer === chosen) name.setAttribute("aria-current", "true");
    name.addEventListener("click", () => this.ask("layer", layer));
    head.append(name);
    made.append(head, ...cells.map((cell, n) => cellOf(cell, columns[n], isDiverging)));
    return made;
  }

  close() {
    this.place.remove();
  }
}

function headOf(columns) {
  const row = make("tr");
  row.append(make("th", "aw-spoken-head", "layer"), ...columns.map((words) => make("th", "", words)));
  for (const cell of row.children) cell.scope = "col";
  const head = make("thead");
  head.append(row);
  return head;
}

function cellOf({ text, says, flushed, cut, isOver }, column, isDiverging) {
  const made = make("td", isOver ? "over" : "");
  made.title = says;
  const bars = isDiverging ? [barOf("flushed", flushed, 50, "right"), barOf("cut", cut, 50, "left")] : [barOf("flushed", flushed, 100, null)];
  made.append(...bars.filter(Boolean), make("span", "", text));
  return made;
}

// A bar from one side of a cell or, of half its room, from the middle.
function barOf(kind, share, room, fromMiddle) {
  if (share < LEAST_SHARE) return null;
  const bar = make("i", `aw-loss-bar ${kind}`);
  bar.style.width = `${room * Math.min(1, share)}%`;
  bar.style[fromMiddle ?? "left"] = fromMiddle ? "50%" : "0";
  return bar;
}
