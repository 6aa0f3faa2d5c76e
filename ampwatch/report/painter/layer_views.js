// The layers in one of the views that their run has (usable loss scales, what casts lose, what if),
// and the switch between them.

import { make } from "./elements.js";
import { FormatLosses } from "./format_losses.js";
import { ScaleWindows } from "./scale_windows.js";

const BODIES = { windows: ScaleWindows, losses: FormatLosses };

export class LayerViews {
  constructor(place) {
    this.place = make("div", "aw-views");
    this.choices = make("div", "aw-view-switch");
    this.choices.setAttribute("role", "group");
    this.choices.setAttribute("aria-label", "View of the layers");
    this.place.append(this.choices);
    place.append(this.place);
  }

  show(header) {
    this.offer(header);
    if (this.kind !== header.component) {
      this.body?.close();
      this.kind = header.component;
      this.body = new BODIES[this.kind](this.place);
      this.body.ask = (kind, value) => this.ask(kind, value);
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
    const made = make("button", "", words);
    Object.assign(made, { type: "button" });
    made.dataset.view = key;
    made.addEventListener("click", () => this.ask("view", key));
    return made;
  }

  close() {
    this.body?.close();
    this.place.remove();
  }
}
