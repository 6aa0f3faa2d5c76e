// Over the chart: what it is drawn over, how smooth, and what is taken along.

import { make } from "./elements.js";
import { countText } from "./ticks.js";
import { PLAIN, labelOf, nameOf, shownLines } from "./view.js";

const NARROW = 620; // less than this it is folded up

export class Toolbar {
  // Around the chart's `frame`. `acts`: what changes the view (`change`), shows all steps (`whole`) or saves the chart (`save`).
  constructor(place, frame, acts) {
    this.acts = acts;
    this.fold = make("details", "aw-toolbar");
    this.fold.append(make("summary", "", "Chart options"));
    this.tools = make("div", "aw-tools");
    this.fold.append(this.tools);
    this.isNarrow = null;
    this.axis = make("select");
    this.axis.addEventListener("change", () => acts.change({ axis: this.axis.value || null }));
    this.size = make("input");
    Object.assign(this.size, { type: "range", min: 0, step: 1 });
    this.size.addEventListener("input", () => acts.change({ smooth: this.sizes[this.size.value] }));
    this.sizeText = make("output", "aw-size");
    this.way = make("select");
    this.way.setAttribute("aria-label", "Way of smoothing");
    for (const [value, text] of [["mean", "exponential"], ["median", "running median"]]) this.way.append(option(value, text));
    this.way.addEventListener("change", () => acts.change({ way: this.way.value }));
    this.axisBox = labelled("x axis", this.axis);
    this.tools.append(this.axisBox, labelled("Smooth", this.size, this.sizeText), this.way, ...this.switches(), this.saves());
    this.whole = this.button("Whole run", "Show all steps again (or double-click a chart, or press Escape)", acts.whole);
    this.whole.classList.add("aw-whole");
    this.hidden = make("div", "aw-hidden-lines");
    place.append(this.fold, frame, this.hidden); // below: nothing moves under a hand that hides lines
    frame.append(this.whole);
  }

  switches() {
    const found = [["band", "Min–max band", "Shade from the lowest to the highest value"], ["cut", "Cut outliers", "Let single values far out leave their panel; they are counted, and arrows show where"]];
    this.boxes = {};
    return found.map(([name, text, title]) => {
      const box = make("input");
      box.type = "checkbox";
      box.addEventListener("change", () => this.acts.change({ [name]: box.checked }));
      this.boxes[name] = box;
      const made = make("label", "aw-tool");
      made.title = title;
      made.append(box, text);
      return made;
    });
  }

  saves() {
    const made = make("span", "aw-tool aw-saves");
    made.append("Save ");
    for (const kind of ["CSV", "SVG", "PNG"]) made.append(this.button(kind, `Save what is shown as ${kind}`, () => this.acts.save(kind)));
    return made;
  }

  button(text, title, act) {
    const made = make("button", "aw-tool-button", text);
    made.title = title;
    made.addEventListener("click", act);
    return made;
  }

  show({ header, view, axis }, isWhole, width) {
    if (this.isNarrow !== width < NARROW) {
      this.isNarrow = width < NARROW;
      this.fold.classList.toggle("narrow", this.isNarrow);
      this.fold.open = !this.isNarrow;
    }
    this.whole.hidden = isWhole;
    this.showAxes(header, axis);
    this.showSize(header, view);
    this.way.hidden = !view.smooth;
    this.way.value = view.way;
    for (const [name, box] of Object.entries(this.boxes)) box.checked = view[name];
    this.showHidden(header, view);
  }

  showAxes({ axes, unit }, axis) {
    const said = JSON.stringify([axes, unit]);
    if (said !== this.axesKnown) {
      this.axesKnown = said;
      this.axis.replaceChildren(option("", unit === "step" ? "step" : "time"), ...axes.map(({ key, label }) => option(key, label)));
    }
    this.axisBox.hidden = !axes.length;
    this.axis.value = axis?.key ?? "";
  }

  showSize({ axis: [first, last], unit }, { smooth }) {
    this.sizes = sizesOf(last - first);
    const at = this.sizes.findLastIndex((size) => size <= smooth);
    Object.assign(this.size, { max: this.sizes.length - 1, value: at });
    this.sizeText.textContent = smooth ? `over ${countText(smooth)} ${unit}s` : "off";
    this.size.setAttribute("aria-valuetext", this.sizeText.textContent);
  }

  // Lines that are hidden are counted and named, wherever the reader looks.
  showHidden({ panels }, view) {
    const hiddenOf = (panel) => {
      const shown = new Set(shownLines(panel, view).map(({ key }) => key));
      return panel.lines.filter(({ key }) => !shown.has(key));
    };
    const names = [...new Map(panels.flatMap(hiddenOf).map((line) => [nameOf(line), labelOf(line)])).values()];
    const said = names.length ? `${countText(names.length)} hidden: ${names.join(", ")}` : "";
    if (said === this.hiddenKnown) return;
    this.hiddenKnown = said;
    this.hidden.hidden = !said;
    const { hidden, solo } = PLAIN;
    this.hidden.replaceChildren(make("bdi", "", said), this.button("Show all", "Show all lines again", () => this.acts.change({ hidden, solo })));
    this.hidden.title = said;
  }
}

// Off, then 2, 5, 10, 20 and so on, to half of the run.
function sizesOf(length) {
  const found = [0];
  for (let unit = 1; found[found.length - 1] < length / 4; unit *= 10) found.push(...[2, 5, 10].map((size) => size * unit));
  return found.filter((size) => size === 0 || size <= Math.max(2, length / 2));
}

function option(value, text) {
  const made = make("option", "", text);
  made.value = value;
  return made;
}

function labelled(text, ...inside) {
  const made = make("label", "aw-tool", text);
  made.append(" ", ...inside);
  return made;
}
