// The heat map as a table, for who hears the page or wants numbers: the same rows, the worst of each of
// a few stretches of steps.

import { make, shortened } from "./elements.js";
import { countText } from "./ticks.js";

const STRETCHES = 8;
const LETTERS = 40; // of a name; all of it is its title
const ROWS = 100; // at first; a button brings as many more

export class LayerTable {
  // `acts` say what a press on a row's fold or name does.
  constructor(place, acts) {
    this.place = make("div", "aw-map-table");
    this.acts = acts;
    this.most = ROWS;
    this.place.hidden = true;
    place.append(this.place);
  }

  // `map` has the rows, the edges of its columns, the words for a value, and what is said above.
  show(map) {
    this.map = map;
    const held = this.place.contains(document.activeElement) ? document.activeElement.dataset.row : null;
    const stretches = stretchesOf(map.edges);
    const table = make("table", "aw-table");
    const body = make("tbody");
    body.append(...map.rows.slice(0, this.most).map((row) => this.row(row, stretches)));
    table.append(make("caption", "aw-muted", map.caption), headOf(stretches, map.recipe), body);
    this.place.replaceChildren(table, ...this.more());
    this.place.tabIndex = 0; // it scrolls
    this.place.setAttribute("role", "region");
    this.place.setAttribute("aria-label", map.caption);
    if (held !== null) this.place.querySelector(`[data-row="${CSS.escape(held)}"]`)?.focus();
  }

  row(row, stretches) {
    const made = make("tr");
    const head = make("th");
    head.scope = "row";
    head.title = row.name;
    head.style.paddingLeft = `${row.depth}rem`;
    if (row.hasInside) head.append(this.fold(row));
    head.append(row.isLayer ? this.name(row) : nameOf(row));
    const recipe = this.map.recipe ? [make("td", "aw-map-recipe", this.map.recipe(row) || "-")] : [];
    made.append(head, ...recipe, ...(row.values ? this.cells(row, stretches) : [without(row, stretches)]));
    return made;
  }

  cells({ values }, stretches) {
    return stretches.map(({ first, last }) => make("td", "", this.map.said(this.worst(values, first, last))));
  }

  fold(row) {
    const button = make("button", "aw-map-fold", row.isOpen ? "▾" : "▸");
    button.setAttribute("aria-expanded", row.isOpen);
    button.setAttribute("aria-label", `${row.name}, ${countText(row.count)} layers`);
    button.dataset.row = `fold ${row.name}`;
    button.addEventListener("click", () => this.acts.turn(row));
    return button;
  }

  name(row) {
    const button = make("button", "aw-map-name");
    button.append(nameOf(row));
    button.title = row.name;
    button.dataset.row = row.name;
    button.addEventListener("click", () => this.acts.choose(row.name));
    return button;
  }

  worst(values, first, last) {
    let found = NaN;
    for (let at = first; at <= last; at++) if (this.map.isWorse(values[at], found)) found = values[at];
    return found;
  }

  more() {
    const rest = this.map.rows.length - this.most;
    if (rest <= 0) return [];
    const button = make("button", "aw-tool-button", `show ${countText(Math.min(ROWS, rest))} more of ${countText(rest)} rows`);
    button.addEventListener("click", () => {
      this.most += ROWS;
      this.show(this.map);
    });
    return [button];
  }
}

function nameOf(row) {
  return make("bdi", "", `${shortened(row.label || "(no name)", LETTERS)}${row.isFold ? ` (worst of ${countText(row.count)})` : ""}`);
}

// Of a prefix that is no layer only what is inside has numbers.
function without({ isOpen }, stretches) {
  const cell = make("td", "aw-muted", isOpen ? "unfolded" : "no value");
  cell.colSpan = stretches.length;
  return cell;
}

function headOf(stretches, hasRecipe) {
  const row = make("tr");
  row.append(make("th", "", "layer"), ...(hasRecipe ? [make("th", "", "multiplies in")] : []), ...stretches.map(({ from, to }) => make("th", "", from === to ? `step ${countText(from)}` : `steps ${countText(from)} to ${countText(to)}`)));
  for (const cell of row.children) cell.scope = "col";
  const head = make("thead");
  head.append(row);
  return head;
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
