// The live chart: keeps the base that the server thinned, joins the rows that came since, draws in
// place, and reports the span that was dragged and the step that was clicked.

import { make } from "./elements.js";
import { Hover } from "./hover.js";
import { LEFT, RIGHT, layout } from "./layout.js";
import { joined } from "./lines.js";
import { paint } from "./paint.js";
import { ticks } from "./skips.js";

const LEAST_WIDTH = 120;
const CLICK_PIXELS = 4; // a mouse moved less has clicked, not dragged
const DOUBLE_CLICK_MS = 400; // the browser's own needs both clicks on one element, and we draw anew

export class Chart {
  constructor(place) {
    this.place = make("div", "aw-chart");
    this.plot = make("div", "aw-plot");
    this.place.append(this.plot);
    place.append(this.place);
    this.hover = new Hover(this.place);
    this.box = make("div", "aw-drag");
    this.box.hidden = true;
    this.place.append(this.box);
    this.whole = this.button();
    this.bases = null;
    this.span = undefined; // what the reader chose; null for the whole run
    this.picked = null;
    this.held = null; // where the mouse went down: nothing is drawn under a drag
    this.clickedAt = -Infinity;
    this.watch();
  }

  // Take in a message. A tail whose base never came (a tab asleep loses messages) is asked for anew.
  show(header, arrays) {
    const other = header.run !== this.header?.run;
    if (other) {
      this.span = header.span;
      this.picked = header.picked;
    }
    if (header.hasBase) this.bases = { id: header.base, arrays };
    if (this.bases?.id !== header.base) {
      this.ask("lost", header.base);
      return;
    }
    this.header = header;
    this.arrays = arrays;
    this.draw();
  }

  close() {
    this.resize.disconnect();
    window.removeEventListener("pointerup", this.release);
    window.removeEventListener("pointercancel", this.cancel);
    this.place.remove();
  }

  // --- drawing -----------------------------------------------------------------------------------

  draw() {
    if (this.held !== null || !this.header) return; // drawn at the mouse's release
    if (this.place.clientWidth < LEAST_WIDTH) return; // not laid out yet: the resize draws
    const view = this.view();
    const drawn = layout({ ...view, width: this.place.clientWidth });
    paint(this.plot, drawn);
    this.whole.hidden = this.span === null;
    this.hover.show({ ...view, height: drawn.plotHeight });
    this.place.dataset.drawn = this.header.rows; // for whoever looks from outside
  }

  view() {
    const { header } = this;
    const span = this.span ?? header.axis;
    const width = Math.max(50, this.place.clientWidth - LEFT - RIGHT);
    const { base, tail } = { base: this.bases.arrays, tail: this.arrays };
    const lines = {};
    for (const panel of header.panels) {
      for (const { key } of panel.lines) {
        const x = tail[`whole.${key}.x`];
        if (x) {
          lines[key] = { x: Array.from(x), y: Array.from(tail[`whole.${key}.y`]) };
          continue;
        }
        lines[key] = joined(
          { x: base[`base.${key}.x`], y: base[`base.${key}.y`] },
          { x: tail["tail.step"], y: tail[`tail.${key}`] },
          header.hole,
        );
      }
    }
    const cells = { first: base["base.skips.first"], last: base["base.skips.last"], count: base["base.skips.count"] };
    const rug = ticks(cells, tail["tail.skips"], span, width);
    return { header, lines, rug, span, picked: this.picked, left: LEFT, width };
  }

  // --- what the reader does ----------------------------------------------------------------------

  watch() {
    this.resize = new ResizeObserver(() => this.draw());
    this.resize.observe(this.place);
    const pixel = (event) => event.clientX - this.place.getBoundingClientRect().left - LEFT;
    this.place.addEventListener("pointermove", (event) => {
      this.hover.move(this.held === null ? pixel(event) : null);
      this.drag(pixel(event));
    });
    this.place.addEventListener("pointerleave", () => this.hover.move(null));
    this.place.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.target.closest("button") || !this.header) return;
      this.held = pixel(event);
      this.place.setPointerCapture(event.pointerId); // a drag may leave the chart
    });
    this.release = (event) => {
      if (this.held === null) return;
      const [from, to] = [this.held, pixel(event)].sort((a, b) => a - b);
      this.held = null;
      this.box.hidden = true;
      const isSecond = event.timeStamp - this.clickedAt < DOUBLE_CLICK_MS;
      this.clickedAt = to - from < CLICK_PIXELS ? event.timeStamp : -Infinity;
      if (isSecond) this.look(null);
      else if (to - from >= CLICK_PIXELS) this.look([from, to].map((at) => this.stepAt(at)));
      else this.pick(from);
      this.draw();
    };
    this.cancel = () => { // the finger scrolls the page
      this.held = null;
      this.box.hidden = true;
      this.draw();
    };
    window.addEventListener("pointerup", this.release);
    window.addEventListener("pointercancel", this.cancel);
  }

  // What is being dragged, pale over all charts.
  drag(pixel) {
    if (this.held === null) return;
    const { width, height } = this.hover.view;
    const [from, to] = [this.held, pixel].map((at) => Math.min(width, Math.max(0, at))).sort((a, b) => a - b);
    this.box.hidden = to - from < CLICK_PIXELS;
    Object.assign(this.box.style, { left: `${LEFT + from}px`, width: `${to - from}px`, height: `${height}px` });
  }

  stepAt(pixel) {
    const { span, width } = this.hover.view;
    const share = Math.min(1, Math.max(0, pixel / width));
    return Math.round(span[0] + share * (span[1] - span[0]));
  }

  look(span) {
    if (span && span[0] >= span[1]) return;
    this.span = span;
    if (this.header.reports) this.report("span", span);
    this.draw();
  }

  pick(pixel) {
    if (pixel < 0 || pixel > this.hover.view.width) return;
    if (!this.header.reports) return;
    this.picked = this.stepAt(pixel);
    this.report("step", this.picked);
  }

  button() {
    const made = make("button", "aw-whole", "Whole run");
    made.title = "Show all steps again (or double-click a chart)";
    made.hidden = true;
    made.addEventListener("click", () => this.look(null));
    this.place.append(made);
    return made;
  }
}
