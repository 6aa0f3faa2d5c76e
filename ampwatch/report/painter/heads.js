// Above each panel: the labels of its lines, to hide, show and single out, and the kind of its axis.

import { make, shortened, tone } from "./elements.js";
import { LEFT, RIGHT } from "./layout.js";
import { legendsOf, nameOf, shownLines } from "./view.js";

const LETTERS = 44; // of a label; all of it is said on hover
const DASHES = { solid: "solid", dash: "dashed", dot: "dotted" };

export class Heads {
  // `acts`: what a label does when it is `toggle`d, made `solo` or `light`ed; and `scale` of a panel.
  constructor(place, acts) {
    this.place = make("div", "aw-panel-heads");
    place.append(this.place);
    this.acts = acts;
    this.known = null;
  }

  // The height of each panel's labels; made anew only where the panels have changed.
  show({ header: { panels }, view }, width) {
    const said = JSON.stringify(panels.map((panel) => panel.lines));
    const legends = legendsOf(panels);
    if (said !== this.known) {
      this.known = said;
      this.heads = panels.map((panel, number) => this.head(panel, legends[number]));
      this.place.replaceChildren(...this.heads.map(({ box }) => box));
      this.measured = null;
    }
    this.heads.forEach((head, number) => this.update(head, legends[number], view));
    if (this.measured !== width) {
      for (const { legend } of this.heads) legend.style.width = `${width - LEFT - RIGHT}px`;
      this.heights = this.heads.map(({ legend }) => legend.offsetHeight);
      this.measured = width;
    }
    return this.heights;
  }

  // Put them where their panels lie.
  put(panels) {
    panels.forEach(({ head, axis, canBeLog }, number) => {
      const { box, scale } = this.heads[number];
      box.style.top = `${head - 24}px`;
      scale.hidden = !canBeLog;
      scale.textContent = axis.type === "log" ? "log" : "linear";
      scale.setAttribute("aria-pressed", axis.type === "log");
    });
  }

  head(panel, labelled) {
    const box = make("div", "aw-panel-head");
    const scale = make("button", "aw-axis-kind");
    const [first] = panel.lines;
    const name = (first?.group ? panel.title[0][0] : first?.label) ?? "";
    scale.title = `Axis of ${name}: logarithmic or linear`;
    scale.setAttribute("aria-label", `Logarithmic axis of ${name}`);
    scale.addEventListener("click", () => this.acts.scale(panel.lines[0].key, scale.textContent !== "log"));
    const legend = make("div", "aw-legend");
    const labels = labelled.lines.map((line) => this.label(labelled, line));
    legend.append(...labels.map(({ box: one }) => one));
    box.append(scale, legend);
    return { box, scale, legend, labels };
  }

  label(panel, line) {
    const box = make("span", "aw-series");
    const key = nameOf(line);
    const button = make("button", "aw-series-name");
    const swatch = make("i", "aw-swatch");
    swatch.style.borderTop = `2.5px ${DASHES[line.dash]} ${tone(line.color)}`;
    if (line.faint) swatch.style.opacity = 0.45;
    const words = make("bdi", "", shortened(line.label, LETTERS));
    button.append(swatch, words);
    button.title = `${line.label}: click to hide or show, Shift and click to show it alone`;
    button.addEventListener("click", ({ shiftKey }) => (shiftKey ? this.acts.solo : this.acts.toggle)(panel, key));
    const only = make("button", "aw-only", "only");
    only.title = `Show ${line.label} alone`;
    only.setAttribute("aria-label", only.title);
    only.addEventListener("click", () => this.acts.solo(panel, key));
    box.append(button, only);
    box.addEventListener("pointerenter", () => this.acts.light(key));
    box.addEventListener("pointerleave", () => this.acts.light(null));
    box.addEventListener("focusin", () => this.acts.light(key));
    box.addEventListener("focusout", () => this.acts.light(null));
    return { box, button, only, key };
  }

  update({ labels }, panel, view) {
    const shown = new Set(shownLines(panel, view).map(nameOf));
    for (const { box, button, only, key } of labels) {
      box.classList.toggle("off", !shown.has(key));
      button.setAttribute("aria-pressed", shown.has(key));
      only.setAttribute("aria-pressed", view.solo.includes(key));
    }
  }
}
