// The label at the cursor: a line through all panels, a dot on each line of data, and what each number is.

import { clockTexts, countText, numberText, powerText, timeText } from "./axis.js";
import { heightIn, LANE, LEFT } from "./chart_drawing.js";
import { labelOf, shownLines } from "./chart_view.js";
import { make, tone } from "./elements.js";
import { countNear, pointAt } from "./lines.js";

const MOST_LINES = 12; // of a panel; those singled out by their labels are fewer
const MOST_ROWS = 12; // of all panels: of more the one under the pointer is told alone
const REACH = 12; // pixels within which a point or a tick is meant
const GAP = 14; // between the cursor and the label
const QUIET = "aw-label-step";

export class Tooltip {
  constructor(place) {
    this.line = hiddenBox(place, "aw-spike");
    this.span = hiddenBox(place, "aw-lit-span");
    this.dots = hiddenBox(place, "aw-dots");
    this.label = hiddenBox(place, "aw-label");
    this.at = null; // where the mouse rests, in pixels of the plot
    this.down = null;
    this.fixed = null; // or the step where the keys have put the cursor
  }

  // `view` is what is drawn: the scene, and its layout.
  show(view) {
    this.view = view;
    this.draw();
  }

  move(pixel, down = null) {
    this.at = pixel;
    this.down = down;
    this.fixed = null;
    this.draw();
  }

  fix(step) {
    this.at = this.down = null;
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

  // The finding in whose lane the pointer is.
  get lane() {
    const { lanes } = this.view.drawn;
    return this.down === null ? null : (lanes.find(({ top }) => this.down >= top && this.down < top + LANE) ?? null);
  }

  draw() {
    const at = this.view ? this.pixel : null;
    const hidden = at === null || at < 0 || at > this.view.width;
    for (const box of [this.line, this.dots, this.label]) box.hidden = hidden;
    const lane = hidden ? null : this.lane;
    this.light(lane);
    if (hidden) return;
    const { height } = this.view;
    this.line.style.transform = `translateX(${LEFT + at}px)`;
    this.line.style.height = `${height}px`;
    const told = lane ? laneRows(lane) : this.told(this.step);
    this.label.replaceChildren(...told.map(labelRow));
    this.dots.replaceChildren(...told.filter(({ dot }) => dot).map(({ dot, color }) => dotAt(dot, color)));
    this.put(at);
  }

  // Beside the pointer, so that it hides nothing that is looked at.
  put(at) {
    const { width, height } = this.view;
    const room = this.label.offsetWidth + GAP;
    const along = at + room > width ? at - room : at + GAP;
    const { lanes } = this.view.drawn;
    const below = lanes.length ? lanes[lanes.length - 1].top + LANE + 4 : 28;
    const middle = this.down === null || this.lane ? below : this.down - this.label.offsetHeight / 2;
    const down = Math.max(0, Math.min(height - this.label.offsetHeight, middle));
    this.label.style.transform = `translate(${Math.round(LEFT + Math.max(-LEFT, along))}px, ${Math.round(down)}px)`;
  }

  // The steps of the finding whose lane is pointed at, through all panels.
  light(lane) {
    this.span.hidden = !lane || lane.ticks.length > 0; // single steps are marked by themselves
    if (this.span.hidden) return;
    const { from, to, color } = lane;
    Object.assign(this.span.style, { left: `${LEFT + from}px`, width: `${Math.max(1, to - from)}px`, height: `${this.view.height}px`, background: color });
  }

  // All of it as one sentence, for who hears it.
  words(step) {
    const marks = this.view.header.marks.filter(({ first, last, steps }) => (steps.length ? steps.includes(step) : step >= first && step <= last)).map(({ label }) => ({ label }));
    return [...this.rows(step, () => true), ...marks].map(({ label, value }) => (value ? `${label} ${value}` : label)).join(", ");
  }

  told(step) {
    const all = this.rows(step, () => true);
    if (all.length <= MOST_ROWS || this.down === null) return all;
    const { panels } = this.view.drawn;
    const under = panels.findIndex(({ bottom, rug }) => this.down <= (rug?.bottom ?? bottom));
    return this.rows(step, (number) => number === under);
  }

  // What the chart shows at a step, in the panels that are wanted.
  rows(step, isWanted) {
    const { header, places, axis, pixelOf, stepOf } = this.view;
    const reach = Math.abs(stepOf(pixelOf(step) + REACH) - step);
    const found = [{ label: header.unit === "step" ? `step ${countText(step)}` : timeText(step), className: QUIET }];
    if (axis) found.push({ label: axis.label, value: PLACES[axis.kind](places.at(step), axis), className: QUIET });
    for (const note of header.notes) {
      if (Math.abs(note.step - step) <= reach / 4) found.push({ label: note.label, color: tone(note.color) });
    }
    header.panels.forEach((panel, number) => isWanted(number) && found.push(...this.panelRows(panel, number, step, reach)));
    return found;
  }

  panelRows(panel, number, step, reach) {
    const { rug, view } = this.view;
    const drawn = shownLines(panel, view);
    const told = drawn.length > MOST_LINES ? drawn.slice(0, MOST_LINES - 1) : drawn;
    const isSeveral = panel.lines.length > 1 || Boolean(panel.lines[0]?.group);
    const found = told.map((line) => this.lineRow(panel, number, line, step, reach, isSeveral)).filter(Boolean);
    const rest = drawn.length - told.length;
    if (rest) found.push({ label: `and ${countText(rest)} more lines`, className: QUIET });
    if (isSeveral && found.length) found.unshift({ label: panel.title[0][0], className: "aw-label-head" });
    const count = panel.rug ? countNear(rug, step, reach / 4) : 0;
    if (count) found.push({ label: count > 1 ? `${countText(count)} steps skipped here` : "skipped", color: tone("skip") });
    return found;
  }

  lineRow(panel, number, line, step, reach, isSeveral) {
    const { lines, drawn, pixelOf } = this.view;
    const points = lines[line.key];
    const row = { label: isSeveral ? labelOf(line) : line.label, color: tone(line.color), className: isSeveral ? "aw-label-in" : "" };
    if (points.odd.some(({ first, last }) => step >= first - reach / 4 && step <= last + reach / 4)) return { ...row, value: "not finite" };
    const point = pointAt(points, step, reach, line.stepped);
    if (!point) return null;
    const { value, smooth } = point;
    const smoothed = smooth === undefined ? "" : `, smoothed ${valueText(panel, smooth)}`;
    const { top, bottom } = drawn.panels[number];
    const down = heightIn(drawn.panels[number])(smooth ?? value);
    const dot = down >= top - 1 && down <= bottom + 1 ? [pixelOf(point.step), down] : null;
    return { ...row, value: valueText(panel, value) + smoothed, dot };
  }
}

const PLACES = {
  second: (place) => timeText(place),
  clock: (place, axis) => clockTexts(axis.origin_s + place, true).join(", "),
  number: (place) => numberText(place),
};

const laneRows = ({ label, color, first, last }) => [
  { label, color },
  { label: first === last ? `step ${countText(first)}` : `steps ${countText(first)} to ${countText(last)}`, className: QUIET },
];

function valueText(panel, value) {
  const text = panel.kind === "power" ? powerText(value) : numberText(value);
  return panel.unit ? `${text} ${panel.unit}` : text;
}

function labelRow({ label, value = "", color, className = "" }) {
  const words = make("span", color ? "aw-dot" : "", label);
  if (color) words.style.setProperty("--aw-dot", color);
  return make("div", className, words, make("b", "", value));
}

function dotAt([along, down], color) {
  const dot = make("i");
  Object.assign(dot.style, { left: `${LEFT + along}px`, top: `${down}px`, background: color });
  return dot;
}

function hiddenBox(place, className) {
  const box = make("div", className);
  box.hidden = true;
  place.append(box);
  return box;
}
