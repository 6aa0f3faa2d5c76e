// Over the heat map: find a layer by name, order, fold and unfold all, and the map as a table.

import { make } from "./elements.js";

export class LayerTools {
  // `acts` say what to do: `change` parts of the view, choose the `first` that was found, go `down`.
  constructor(place, acts) {
    this.find = make("input", "aw-search");
    Object.assign(this.find, { type: "search", placeholder: "Find a layer" });
    this.find.setAttribute("aria-label", "Find a layer by a part of its name; Enter opens the first");
    this.find.addEventListener("input", () => acts.change({ find: this.find.value }));
    this.find.addEventListener("keydown", ({ key }) => {
      if (key === "Enter" && this.find.value.trim()) acts.first();
      else if (key === "ArrowDown") acts.down();
    });
    this.order = make("select");
    this.order.setAttribute("aria-label", "Order of the layers");
    for (const [value, words] of [["model", "in the model's order"], ["worst", "worst first"]]) {
      const option = make("option", "", words);
      option.value = value;
      this.order.append(option);
    }
    this.order.addEventListener("change", () => acts.change({ isWorstFirst: this.order.value === "worst" }));
    this.open = button("Unfold all", () => acts.change({ unfolded: "all", turned: [] }));
    this.shut = button("Fold all", () => acts.change({ unfolded: "none", turned: [] }));
    this.table = button("Table", () => acts.change({ isTable: this.table.getAttribute("aria-pressed") !== "true" }));
    this.told = make("span", "aw-map-told");
    this.told.setAttribute("role", "status");
    const all = make("div", "aw-tools aw-map-tools");
    all.append(this.find, this.order, this.open, this.shut, this.table, this.told);
    place.append(all);
  }

  show(view, told) {
    if (document.activeElement !== this.find) this.find.value = view.find; // else the reader is typing
    this.order.value = view.isWorstFirst ? "worst" : "model";
    this.table.setAttribute("aria-pressed", view.isTable);
    if (this.told.textContent !== told) this.told.textContent = told;
  }
}

function button(words, act) {
  const made = make("button", "aw-tool-button", words);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}
