// Hovering one chart shows the step in all: a line through all panels, and one label with what each
// shows there.

import { make, tone } from "./elements.js";
import { countNear } from "./skips.js";
import { valueAt } from "./lines.js";
import { shownLines } from "./view.js";
import { countText, numberText, powerText, timeText } from "./ticks.js";

const MOST_TOLD = 12; // lines of a panel; those singled out by their labels are fewer
const REACH = 12; // pixels within which a point or a tick is meant

export class Hover {
  constructor(place) {
    this.line = element(place, "aw-spike");
    this.label = element(place, "aw-label");
    this.at = null; // where the mouse rests, in pixels of the plot
    this.fixed = null; // or the step where the keys have put the cursor
  }

  // `view` is what is drawn: the scene, and its left and height.
  show(view) {
    this.view = view;
    this.draw();
  }

  move(pixel) {
    this.at = pixel;
    this.fixed = null;
    this.draw();
  }

  fix(step) {
    this.at = null;
    this.fixed = step;
    this.draw();
  }

  leave() {
    this.move(null);
  }

  get pixel() {
    if (this.fixed === null) return this.at;
    return this.view.pixelOf(this.fixed);
  }

  get step() {
    return this.fixed ?? this.view.stepOf(this.at);
  }

  draw() {
    const at = this.view ? this.pixel : null;
    const hidden = at === null || at < 0 || at > this.view.width;
    this.line.hidden = this.label.hidden = hidden;
    if (hidden) return;
    const { left, width, height } = this.view;
    this.line.style.transform = `translateX(${left + at}px)`;
    this.line.style.height = `${height}px`;
    this.label.replaceChildren(...this.said(this.step).map(row));
    const room = this.label.offsetWidth + 14;
    const flip = at + room > width;
    this.label.style.transform = `translate(${left + Math.max(-left, at + (flip ? -room : 14))}px, 28px)`;
  }

  // The same as one sentence, for who hears it.
  words(step) {
    return this.said(step).map(({ label, value }) => (value ? `${label} ${value}` : label)).join(", ");
  }

  // What the chart shows at a step.
  said(step) {
    const { header, lines, rug, view, places, axis, pixelOf, stepOf } = this.view;
    const reach = Math.abs(stepOf(pixelOf(step) + REACH) - step);
    const found = [{ label: header.unit === "step" ? `step ${countText(step)}` : timeText(step), value: "", className: "aw-label-step" }];
    if (axis) found.push({ label: axis.label, value: axis.kind === "second" ? timeText(places.at(step)) : numberText(places.at(step)), className: "aw-label-step" });
    for (const panel of header.panels) {
      const drawn = shownLines(panel, view);
      const told = drawn.length > MOST_TOLD ? drawn.slice(0, MOST_TOLD - 1) : drawn;
      for (const line of told) {
        const points = lines[line.key];
        if (points.odd.some(({ first, last }) => step >= first - reach / 4 && step <= last + reach / 4)) {
          found.push({ label: line.label, value: "not finite", color: tone(line.color) });
          continue;
        }
        const value = valueAt(points, step, reach, line.stepped);
        if (value === null) continue;
        found.push({ label: line.label, value: shown(panel, value), color: tone(line.color) });
        const smooth = points.smooth && valueAt({ x: points.x, y: points.smooth }, step, reach);
        if (smooth) found.push({ label: "smoothed", value: shown(panel, smooth), className: "aw-label-step" });
      }
      const rest = drawn.length - told.length;
      if (rest) found.push({ label: `and ${countText(rest)} more lines`, value: "", className: "aw-label-step" });
      const count = panel.rug ? countNear(rug, step, reach / 4) : 0;
      if (count) found.push({ label: count > 1 ? `${countText(count)} steps skipped here` : "skipped", value: "", color: tone("skip") });
    }
    for (const mark of header.marks) {
      if (step >= mark.first && step <= mark.last) found.push({ label: mark.label, value: "", color: tone(mark.color) });
    }
    return found;
  }
}

function shown(panel, value) {
  const text = panel.kind === "power" ? powerText(value) : numberText(value);
  return panel.unit ? `${text} ${panel.unit}` : text;
}

function row({ label, value, color, className = "" }) {
  const made = make("div", className);
  const words = make("span", color ? "aw-dot" : "", label);
  if (color) words.style.setProperty("--aw-dot", color);
  made.append(words, make("b", "", value));
  return made;
}

function element(place, className) {
  const made = make("div", className);
  made.hidden = true;
  place.append(made);
  return made;
}
