// The live chart: keeps the base that the server thinned, joins the rows that came since, draws in
// place, and reports what its reader chose: the span in view, the step that was picked, and the view.
// Mouse, fingers and keys on it.

import { countText } from "./axis.js";
import { layout, LEFT, paint, rightRoom, shift } from "./chart_drawing.js";
import { PLAIN, textOf, viewOf } from "./chart_view.js";
import { light, make, onLight } from "./elements.js";
import { PanelLegends, Toolbar } from "./legend_and_toolbar.js";
import { joined, measured, sceneOf, stretchesOf } from "./lines.js";
import { Tooltip } from "./tooltip.js";

const LEAST_WIDTH = 120;
const SLIDING_MS = 250; // a slider that rests for so long has been set
const RESTING = [150, 8]; // a view that rests under the fingers so many ms, and times what drawing took, is drawn anew
const REACH = 1; // widths of the plot at either end, drawn for a view that is being moved
const SPOKEN_KEYS = "Arrows move step by step, plus and minus zoom, Enter picks a step, Escape takes it back.";

export class Chart {
  constructor(place) {
    this.place = make("div", "aw-chart");
    this.plot = make("div", "aw-plot");
    Object.assign(this.plot, { tabIndex: 0, role: "slider" });
    this.frame = make("div", "aw-frame", this.plot);
    this.toolbar = new Toolbar(this.place, this.frame, this);
    this.legends = new PanelLegends(this.frame, this);
    place.append(this.place);
    this.hover = new Tooltip(this.frame);
    this.chip = make("button", "aw-chip"); // the picked step, to be taken back
    this.chip.addEventListener("click", () => this.pick(this.picked));
    this.boxed = make("div", "aw-drag");
    this.boxed.hidden = true;
    this.spoken = make("div", "aw-spoken");
    this.spoken.setAttribute("aria-live", "polite");
    this.frame.append(this.boxed, this.spoken, this.chip);
    this.bases = null;
    this.span = null; // what the reader chose; null for the whole run
    this.picked = null;
    this.view = PLAIN;
    this.lit = null; // the line whose label is pointed at
    this.known = null; // of these, what was told or came with the address
    this.count = 0; // of the reader's choices: a message that knows fewer is behind
    this.differs = () => false; // whether a message was made for an address that was left
    this.watch();
  }

  // Take in a message. A tail whose base never came (a tab asleep loses messages) is asked for anew.
  show(header, arrays) {
    this.follow(header);
    if (header.hasBase) this.bases = { id: header.base, arrays };
    if (this.bases?.id !== header.base) {
      this.ask("lost", header.base);
      return;
    }
    this.header = header;
    this.arrays = arrays;
    this.join();
    this.draw();
  }

  // What the address says is followed (Back, Forward, a link), unless the reader has gone on since.
  follow(header) {
    const { span, picked, heard } = header;
    const before = this.header;
    if (header.run !== before?.run) {
      Object.assign(this, { span, picked, count: heard, view: viewOf(header.view) });
      this.hover.leave();
    } else if (!header.reports) {
      if (picked !== before.picked) this.picked = picked;
    } else if (heard >= this.count && !this.isLate(header)) {
      Object.assign(this, { span, picked, view: viewOf(header.view) });
    } else return;
    this.known = this.state();
  }

  isLate({ span, picked, view }) {
    return this.differs({ span: span && span.join("-"), step: picked === null ? null : String(picked), view });
  }

  close() {
    this.resize.disconnect();
    this.unlight();
    this.place.remove();
  }

  // --- drawing -----------------------------------------------------------------------------------

  join() {
    const keys = this.header.panels.flatMap((panel) => panel.lines.map(({ key }) => key));
    this.lines = {};
    for (const key of [...keys, ...this.header.axes.map(({ key, line }) => line || key)]) {
      this.lines[key] ??= { ...this.lineOf(key), odd: stretchesOf(key, { ...this.bases.arrays, ...this.arrays }) };
    }
  }

  lineOf(key) {
    const base = this.bases.arrays;
    const tail = this.arrays;
    const x = tail[`whole.${key}.x`];
    if (x) return measured({ x: Array.from(x), y: Array.from(tail[`whole.${key}.y`]) });
    return joined(
      { x: base[`base.${key}.x`], y: base[`base.${key}.y`] },
      { x: tail["tail.step"], y: tail[`tail.${key}`] },
      this.header.hole,
    );
  }

  draw() {
    if (this.gestures.isHolding || !this.header) return; // drawn when it is let go
    this.drawNow();
  }

  drawNow(reach = 0) {
    const width = this.place.clientWidth;
    if (width < LEAST_WIDTH) return; // not laid out yet: the resize draws
    const began = performance.now();
    const family = getComputedStyle(this.plot).fontFamily;
    const right = rightRoom(this.header, this.view, width, family);
    const scene = this.scene = { ...sceneOf(this, Math.max(50, width - LEFT - right), reach), right };
    this.toolbar.show(scene, this.span === null, width);
    const heights = this.legends.show(scene, width);
    const drawn = layout(scene, width, heights, family);
    paint(this.plot, drawn, scene);
    this.legends.put(drawn.panels);
    this.putChip(drawn.flags.find(({ isPicked }) => isPicked));
    this.hover.show({ ...scene, drawn, height: drawn.plotHeight });
    this.say();
    this.place.dataset.drawn = this.header.rows; // for whoever looks from outside
    this.drawingMs = performance.now() - began;
  }

  // Over the picked step's label, which a saved picture has too.
  putChip(flag) {
    this.chip.hidden = !flag || !this.header.reports;
    if (this.chip.hidden) return;
    this.chip.textContent = flag.text;
    this.chip.title = "Take the picked step back (or press Escape)";
    this.chip.setAttribute("aria-label", `Take back ${flag.text.slice(0, -2)}`);
    this.chip.style.transform = `translateX(${LEFT + this.scene.pixelOf(flag.at)}px)${flag.left ? " translateX(-100%)" : ""}`;
  }

  // For who hears the page: what the chart shows, and what it shows at the cursor.
  say() {
    const { unit, panels } = this.header;
    const [first, last] = this.shown;
    const of = panels.map(({ title }) => title[0]?.[0]).join(", ");
    const steps = `over ${unit}s ${countText(first)} to ${countText(last)}`;
    const at = this.cursor ?? this.picked ?? last;
    const texts = {
      label: `Chart of ${of}, ${steps}. ${SPOKEN_KEYS}`,
      valuemin: first, valuemax: last, valuenow: Math.min(last, Math.max(first, at)),
      valuetext: this.hover.words(at),
    };
    for (const [name, text] of Object.entries(texts)) this.plot.setAttribute(`aria-${name}`, text);
  }

  // --- what the reader does ----------------------------------------------------------------------

  watch() {
    this.resize = new ResizeObserver(() => this.draw());
    this.resize.observe(this.place);
    this.unlight = onLight((name) => this.isGrouped && (name === null || this.hasGroup(name)) && this.light(name));
    this.gestures = new Gestures(this.frame, this);
    this.frame.addEventListener("pointerleave", ({ pointerType }) => {
      if (pointerType !== "touch") this.hover.leave(); // what a finger asked for stays to be read
    });
    this.plot.addEventListener("keydown", (event) => onKey(event, this));
  }

  get isDrawn() {
    return Boolean(this.hover.view);
  }

  get shown() {
    return this.span ?? this.header.axis;
  }

  get cursor() {
    return this.hover.fixed;
  }

  // What lies at the plot's ends, and its width.
  grip() {
    const { places, width } = this.scene;
    const [low, high] = this.shown.map((step) => places.at(step));
    return { low, high, width };
  }

  // What is being dragged, pale over all charts.
  box(pixels) {
    this.boxed.hidden = pixels === null;
    if (pixels === null) return;
    this.hover.leave();
    const { width, height } = this.hover.view;
    const [from, to] = pixels.map((at) => Math.min(width, Math.max(0, at))).sort((a, b) => a - b);
    Object.assign(this.boxed.style, { left: `${LEFT + from}px`, width: `${to - from}px`, height: `${height}px` });
  }

  // Move the view under the fingers, once a frame; told when they are lifted. Drawn anew is what lies at its ends, or
  // what was stretched; a view that is moved is only shifted, until it rests.
  move([low, high]) {
    this.hover.leave();
    this.span = this.within([low, high].map((place) => this.scene.places.step(place)));
    clearTimeout(this.resting);
    this.resting = setTimeout(() => this.drawNow(REACH), Math.max(RESTING[0], RESTING[1] * this.drawingMs));
    this.frameAsked ??= requestAnimationFrame(() => {
      this.frameAsked = null;
      if (!this.canShift) this.drawNow(REACH);
      else {
        this.chip.hidden = true; // it stands where the picked step was
        shift(this.plot, { ...this.scene, span: this.shown, drawn: this.plot.drawn });
      }
    });
  }

  // Whether the view has the length of what is drawn, and lies within its reach.
  get canShift() {
    const { places, reach } = this.scene;
    const [from, to] = this.plot.drawn.range;
    const [low, high] = this.shown.map((step) => places.at(step));
    const length = to - from;
    return reach > 0 && Math.abs(high - low - length) < 1e-3 * length && Math.abs(low - from) <= reach * length;
  }

  // A move has ended, or the page took it for itself.
  settle() {
    clearTimeout(this.resting);
    cancelAnimationFrame(this.frameAsked); // it would draw beyond the ends once more
    this.frameAsked = null;
    this.choose({ span: this.span });
  }

  lookAt(span) {
    this.choose({ span: this.within(span) });
  }

  // A span as far as there are steps; null for all of them.
  within([low, high]) {
    const [first, last] = this.header.axis;
    const length = Math.max(1, Math.min(high - low, last - first));
    const from = Math.round(Math.min(Math.max(low, first), last - length));
    const to = Math.min(last, Math.max(from + 1, Math.round(from + length)));
    return from <= first && to >= last ? null : [from, to];
  }

  stepAt(pixel) {
    return this.scene.stepOf(Math.min(this.scene.width, Math.max(0, pixel)));
  }

  // Pick the step that was clicked; once more, or twice in a row, takes it back.
  click(pixel, down, { isSecond, isTouch }) {
    const { width } = this.hover.view;
    if (isSecond) {
      this.choose({ span: null, picked: this.pickedBefore });
      return;
    }
    this.pickedBefore = this.picked;
    if (pixel >= 0 && pixel <= width) {
      if (isTouch) this.hover.move(pixel, down);
      const isSame = this.picked !== null && Math.abs(this.scene.pixelOf(this.picked) - pixel) <= CLICK_PIXELS;
      this.pick(isSame ? this.picked : this.stepAt(pixel));
    }
    this.draw();
  }

  pick(step) {
    if (!this.header.reports) return;
    this.choose({ picked: step === this.picked ? null : step });
    this.announce(this.picked === null ? "No step is picked." : `Step ${countText(this.picked)} is picked.`);
  }

  // Escape takes back the last thing first: the picked step, then the zoom, then the cursor.
  escape() {
    if (this.picked !== null && this.header.reports) this.pick(this.picked);
    else if (this.span !== null) this.choose({ span: null });
    else this.hover.leave();
  }

  // The cursor, by keys; the view goes along.
  moveCursor(step) {
    const [first, last] = this.header.axis;
    const at = Math.min(last, Math.max(first, step));
    const [low, high] = this.shown;
    this.hover.fix(at);
    if (at < low) this.lookAt([at, at + high - low]);
    else if (at > high) this.lookAt([at - (high - low), at]);
    else this.say();
  }

  // The next step at which anything is drawn.
  nextStep(way) {
    const from = this.cursor ?? this.picked ?? this.shown[way > 0 ? 0 : 1] - way;
    let found = null;
    for (const { x, y } of Object.values(this.lines)) {
      for (let at = 0; at < x.length; at++) {
        const ahead = way * (x[at] - from);
        if (ahead > 0 && !Number.isNaN(y[at]) && (found === null || ahead < way * (found - from))) found = x[at];
      }
    }
    return found ?? from + way;
  }

  // Another view: parts of it, or all.
  change(parts) {
    this.choose({ view: { ...this.view, ...parts } }, "smooth" in parts ? SLIDING_MS : 0);
  }

  get isGrouped() {
    return Boolean(this.header?.panels.some(({ lines }) => lines[0]?.group));
  }

  hasGroup(name) {
    return this.header.panels.some(({ lines }) => lines.some(({ group }) => group === name));
  }

  // A label that is pointed at: of a run it is lit in other parts of the page too.
  lightLabel(key) {
    if (this.isGrouped) light(key);
    else this.light(key);
  }

  // While a line's label is pointed at, the others are pale.
  light(key) {
    this.lit = key;
    this.draw();
  }

  // What the reader chose is drawn at once, and told where the page keeps it.
  choose(parts, wait = 0) {
    Object.assign(this, parts);
    if (this.header.reports && this.state() !== this.known) {
      this.known = this.state();
      this.count++; // until it is heard, no message changes what was chosen
      clearTimeout(this.telling);
      if (wait) this.telling = setTimeout(() => this.tell(), wait);
      else this.tell();
    }
    this.draw();
  }

  tell() {
    const { span, picked, view, count } = this;
    this.report("look", { span, step: picked, view: textOf(view), count });
  }

  state() {
    return JSON.stringify([this.span, this.picked, textOf(this.view)]);
  }

  announce(text) {
    this.spoken.textContent = text;
  }
}

// --- keys ---------------------------------------------------------------------------------------

// What the keys do while the chart has the focus.

const LEAP = 0.1; // of the view: Shift with an arrow, Page Up and Down
const ZOOM = 2;

// `chart` has a cursor: a step, or null.
function onKey(event, chart) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const act = KEYS[event.key];
  if (!act || !chart.isDrawn) return;
  act(chart, event);
  event.preventDefault(); // nor does the page scroll
}

const KEYS = {
  ArrowLeft: (chart, { shiftKey }) => (shiftKey ? leap(chart, -1) : chart.moveCursor(chart.nextStep(-1))),
  ArrowRight: (chart, { shiftKey }) => (shiftKey ? leap(chart, 1) : chart.moveCursor(chart.nextStep(1))),
  PageUp: (chart) => leap(chart, -1),
  PageDown: (chart) => leap(chart, 1),
  Home: (chart) => chart.moveCursor(chart.shown[0]),
  End: (chart) => chart.moveCursor(chart.shown[1]),
  "+": (chart) => zoom(chart, 1 / ZOOM),
  "=": (chart) => zoom(chart, 1 / ZOOM),
  "-": (chart) => zoom(chart, ZOOM),
  _: (chart) => zoom(chart, ZOOM),
  Enter: (chart) => chart.pick(cursorOf(chart)),
  " ": (chart) => chart.pick(cursorOf(chart)),
  Escape: (chart) => chart.escape(),
};

function cursorOf({ cursor, shown: [first, last] }) {
  return cursor ?? Math.round((first + last) / 2);
}

function leap(chart, way) {
  const [first, last] = chart.shown;
  chart.moveCursor(cursorOf(chart) + way * Math.max(1, Math.round(LEAP * (last - first))));
}

// About the cursor, which stays where it is on the screen.
function zoom(chart, factor) {
  const [first, last] = chart.shown;
  const at = Math.min(last, Math.max(first, cursorOf(chart)));
  chart.lookAt([at - (at - first) * factor, at + (last - at) * factor]);
}

// --- mouse and fingers --------------------------------------------------------------------------

// What a mouse and fingers do on the chart. A mouse drags a span, or moves the view with Shift. One
// finger moves the view sideways, two stretch it; up and down the page scrolls. A click or a tap picks
// a step, a double one shows the whole run.

const CLICK_PIXELS = 4; // moved less, it is a click
const FINGER_PIXELS = 9;
const DOUBLE_CLICK_MS = 400; // the browser's own needs both clicks on one element, and we draw anew
const DOUBLE_CLICK_PIXELS = 24;
const CONTROLS = "button, input, select, a, label, summary";

class Gestures {
  // `chart` is asked for its `grip` (what lies in view) and told to `box`, `move`, `lookAt`, `click`.
  constructor(area, chart) {
    Object.assign(this, { area, chart });
    this.held = new Map(); // pointer: where it went down and where it is, in pixels of the plot
    this.kind = null; // box, move, or null while it may be a click
    this.clicked = null; // when and where last
    const acts = { press: "pointerdown", move: "pointermove", up: "pointerup" };
    for (const [act, name] of Object.entries(acts)) area.addEventListener(name, (event) => this[act](event));
    // A finger may turn to scroll the page.
    for (const name of ["pointercancel", "lostpointercapture"]) area.addEventListener(name, (event) => this.cancel(event));
  }

  get isHolding() {
    return this.held.size > 0;
  }

  pixel(event) {
    return event.clientX - this.area.getBoundingClientRect().left - LEFT;
  }

  down(event) {
    return event.clientY - this.area.getBoundingClientRect().top;
  }

  press(event) {
    if (event.button !== 0 || event.target.closest(CONTROLS) || !this.chart.isDrawn) return;
    this.area.setPointerCapture(event.pointerId); // a drag may leave the chart
    const at = this.pixel(event);
    this.held.set(event.pointerId, { from: at, at });
    this.isTouch = event.pointerType === "touch";
    this.moves = this.isTouch || event.shiftKey;
    if (this.held.size > 1) this.kind = "move";
    this.grip();
  }

  // From here the view is moved: what lies under the fingers stays under them.
  grip() {
    for (const one of this.held.values()) one.from = one.at;
    this.view = this.chart.grip();
  }

  move(event) {
    const one = this.held.get(event.pointerId);
    if (!one) {
      if (event.pointerType !== "touch") this.chart.hover.move(this.pixel(event), this.down(event));
      return;
    }
    one.at = this.pixel(event);
    const least = this.isTouch ? FINGER_PIXELS : CLICK_PIXELS;
    if (this.kind === null && Math.abs(one.at - one.from) >= least) this.kind = this.moves ? "move" : "box";
    if (this.kind === "box") this.chart.box([one.from, one.at]);
    if (this.kind === "move") this.chart.move(this.moved());
  }

  // The places that lie at the plot's ends now.
  moved() {
    const { low, high, width } = this.view;
    const place = (pixel) => low + (pixel / width) * (high - low);
    const [one, other] = [...this.held.values()];
    const isPinch = other && Math.abs(other.at - one.at) > FINGER_PIXELS && Math.abs(other.from - one.from) > FINGER_PIXELS;
    const scale = isPinch ? (place(other.from) - place(one.from)) / (other.at - one.at) : (high - low) / width;
    const first = place(one.from) - Math.abs(scale) * one.at;
    return [first, first + Math.abs(scale) * width];
  }

  up(event) {
    const one = this.held.get(event.pointerId);
    if (!one) return;
    one.at = this.pixel(event);
    const { kind } = this;
    this.held.delete(event.pointerId);
    if (this.isHolding) { // the other finger goes on
      this.grip();
      return;
    }
    this.kind = null;
    this.chart.box(null);
    if (kind) this.clicked = null;
    if (kind === "box") this.chart.lookAt([one.from, one.at].sort((a, b) => a - b).map((pixel) => this.chart.stepAt(pixel)));
    else if (kind === "move") this.chart.settle();
    else this.click(event, one.at);
  }

  click(event, pixel) {
    const { time, at } = this.clicked ?? { time: -Infinity, at: 0 };
    const isSecond = event.timeStamp - time < DOUBLE_CLICK_MS && Math.abs(pixel - at) < DOUBLE_CLICK_PIXELS;
    this.clicked = isSecond ? null : { time: event.timeStamp, at: pixel };
    this.chart.click(pixel, this.down(event), { isSecond, isTouch: this.isTouch });
  }

  cancel(event) {
    if (!this.held.delete(event.pointerId) || this.isHolding) return;
    this.kind = null;
    this.chart.box(null);
    this.chart.settle();
  }
}
