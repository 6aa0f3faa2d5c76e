// The live chart: keeps the base that the server thinned, joins the rows that came since, draws in
// place, and reports what its reader chose: the span in view, the step that was picked, and the view.

import { make } from "./elements.js";
import { Gestures, CLICK_PIXELS } from "./gestures.js";
import { Heads } from "./heads.js";
import { Hover } from "./hover.js";
import { onKey } from "./keyboard.js";
import { LEFT, RIGHT, layout } from "./layout.js";
import { light, onLight } from "./lighting.js";
import { joined, measured, stretchesOf } from "./lines.js";
import { paint } from "./paint.js";
import { sceneOf } from "./scene.js";
import { save } from "./saving.js";
import { countText } from "./ticks.js";
import { Toolbar } from "./toolbar.js";
import { PLAIN, scaled, soloed, textOf, toggled, viewOf } from "./view.js";

const LEAST_WIDTH = 120;
const SLIDING_MS = 250; // a slider that rests for so long has been set
const SPOKEN_KEYS = "Arrows move step by step, plus and minus zoom, Enter picks a step, Escape takes it back.";

export class Chart {
  constructor(place) {
    this.place = make("div", "aw-chart");
    this.frame = make("div", "aw-frame");
    this.plot = make("div", "aw-plot");
    Object.assign(this.plot, { tabIndex: 0, role: "slider" });
    this.frame.append(this.plot);
    this.toolbar = new Toolbar(this.place, this.frame, {
      change: (parts) => this.change(parts),
      whole: () => this.choose({ span: null }),
      save: (kind) => save(kind, this.scene, this.plot),
    });
    this.heads = new Heads(this.frame, {
      toggle: (panel, key) => this.change(toggled(this.view, panel, key)),
      solo: (panel, key) => this.change(soloed(this.view, panel, key)),
      scale: (key, isLog) => this.change(scaled(this.view, key, isLog)),
      light: (key) => (this.isGrouped ? light(key) : this.light(key)),
    });
    place.append(this.place);
    this.hover = new Hover(this.frame);
    this.boxed = make("div", "aw-drag");
    this.boxed.hidden = true;
    this.spoken = make("div", "aw-spoken");
    this.spoken.setAttribute("aria-live", "polite");
    this.frame.append(this.boxed, this.spoken);
    this.bases = null;
    this.span = null; // what the reader chose; null for the whole run
    this.picked = null;
    this.view = PLAIN;
    this.lit = null; // the line whose label is pointed at
    this.known = null; // of these, what was told or came with the address
    this.count = 0; // of the reader's choices: a message that knows fewer is behind
    this.isLate = () => false; // whether a message was made for an address that was left
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

  close() {
    this.resize.disconnect();
    this.unlight();
    this.place.remove();
  }

  // --- drawing -----------------------------------------------------------------------------------

  join() {
    const keys = this.header.panels.flatMap((panel) => panel.lines.map(({ key }) => key));
    this.lines = {};
    for (const key of [...keys, ...this.header.axes.map((axis) => axis.key)]) {
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

  drawNow() {
    const width = this.place.clientWidth;
    if (width < LEAST_WIDTH) return; // not laid out yet: the resize draws
    const scene = this.scene = sceneOf(this, Math.max(50, width - LEFT - RIGHT));
    this.toolbar.show(scene, this.span === null, width);
    const heights = this.heads.show(scene, width);
    const drawn = layout(scene, width, heights, getComputedStyle(this.plot).fontFamily);
    paint(this.plot, drawn, scene);
    this.heads.put(drawn.panels);
    this.hover.show({ ...scene, left: LEFT, height: drawn.plotHeight });
    this.say();
    this.place.dataset.drawn = this.header.rows; // for whoever looks from outside
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

  get left() {
    return LEFT;
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

  hoverAt(pixel) {
    this.hover.move(pixel);
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

  // Move the view under the fingers; drawn once a frame, told when they are lifted.
  move([low, high]) {
    this.hover.leave();
    this.span = this.within([low, high].map((place) => this.scene.places.step(place)));
    this.frameAsked ??= requestAnimationFrame(() => {
      this.frameAsked = null;
      this.drawNow();
    });
  }

  // A move has ended, or the page took it for itself.
  settle() {
    this.choose({ span: this.span });
  }

  look(pixels) {
    this.lookAt(pixels.map((at) => this.stepAt(at)));
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
  click(pixel, { isSecond, isTouch }) {
    const { width } = this.hover.view;
    if (isSecond) {
      this.choose({ span: null, picked: this.pickedBefore });
      return;
    }
    this.pickedBefore = this.picked;
    if (pixel >= 0 && pixel <= width) {
      if (isTouch) this.hover.move(pixel);
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
