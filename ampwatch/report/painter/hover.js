// Hovering one chart shows the step in all: a line through all panels, and one label with what each
// shows there.

import { make, tone } from "./elements.js";
import { countNear } from "./skips.js";
import { valueAt } from "./lines.js";
import { countText, numberText, powerText, timeText } from "./ticks.js";

const REACH = 12; // pixels within which a point or a tick is meant

export class Hover {
  constructor(place) {
    this.line = element(place, "aw-spike");
    this.label = element(place, "aw-label");
    this.at = null; // where the mouse rests, in pixels of the plot
  }

  // `view` is what is drawn: header, lines, rug, span, left, width, height.
  show(view) {
    this.view = view;
    this.draw();
  }

  move(pixel) {
    this.at = pixel;
    this.draw();
  }

  get step() {
    const { span, width } = this.view;
    return Math.round(span[0] + (this.at / width) * (span[1] - span[0]));
  }

  draw() {
    const hidden = this.at === null || !this.view || this.at < 0 || this.at > this.view.width;
    this.line.hidden = this.label.hidden = hidden;
    if (hidden) return;
    const { left, width, height } = this.view;
    this.line.style.transform = `translateX(${left + this.at}px)`;
    this.line.style.height = `${height}px`;
    this.label.replaceChildren(...this.rows());
    const room = this.label.offsetWidth + 14;
    const flip = this.at + room > width;
    this.label.style.transform = `translate(${left + this.at + (flip ? -room : 14)}px, 28px)`;
  }

  rows() {
    const { header, lines, rug, span, width } = this.view;
    const reach = (REACH / width) * (span[1] - span[0]);
    const step = this.step;
    const place = header.unit === "step" ? `step ${countText(step)}` : timeText(step);
    const rows = [row(place, "", null, "aw-label-step")];
    for (const panel of header.panels) {
      for (const line of panel.lines) {
        const value = valueAt(lines[line.key], step, reach, line.stepped);
        if (value !== null) rows.push(row(line.label, shown(panel, value), tone(line.color)));
      }
      const count = panel.rug ? countNear(rug, step, reach / 4) : 0;
      if (count) rows.push(row(count > 1 ? `${countText(count)} steps skipped here` : "skipped", "", tone("skip")));
    }
    for (const mark of header.marks) {
      if (step >= mark.first && step <= mark.last) rows.push(row(mark.label, "", tone(mark.color)));
    }
    return rows;
  }
}

function shown(panel, value) {
  const text = panel.kind === "power" ? powerText(value) : numberText(value);
  return panel.unit ? `${text} ${panel.unit}` : text;
}

function row(label, value, color, className = "") {
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
