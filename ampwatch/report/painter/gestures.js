// What a mouse and fingers do on the chart. A mouse drags a span, or moves the view with Shift. One
// finger moves the view sideways, two stretch it; up and down the page scrolls. A click or a tap picks
// a step, a double one shows the whole run.

export const CLICK_PIXELS = 4; // moved less, it is a click
const FINGER_PIXELS = 9;
const DOUBLE_CLICK_MS = 400; // the browser's own needs both clicks on one element, and we draw anew
const DOUBLE_CLICK_PIXELS = 24;
const CONTROLS = "button, input, select, a, label";

export class Gestures {
  // `chart` is asked for its `grip` (what lies in view) and told to `box`, `move`, `look`, `click`.
  constructor(area, chart) {
    Object.assign(this, { area, chart });
    this.held = new Map(); // pointer: where it went down and where it is, in pixels of the plot
    this.kind = null; // box, move, or null while it may be a click
    this.clicked = null; // when and where last
    this.listen("pointerdown", (event) => this.down(event));
    this.listen("pointermove", (event) => this.move(event));
    this.listen("pointerup", (event) => this.up(event));
    this.listen("pointercancel", (event) => this.cancel(event)); // the finger scrolls the page
    this.listen("lostpointercapture", (event) => this.cancel(event));
  }

  get isHolding() {
    return this.held.size > 0;
  }

  listen(name, act) {
    this.area.addEventListener(name, act);
  }

  pixel(event) {
    return event.clientX - this.area.getBoundingClientRect().left - this.chart.left;
  }

  down(event) {
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
      if (event.pointerType !== "touch") this.chart.hoverAt(this.pixel(event));
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
    if (kind === "box") this.chart.look([one.from, one.at].sort((a, b) => a - b));
    else if (kind === "move") this.chart.settle();
    else this.click(event, one.at);
  }

  click(event, pixel) {
    const { time, at } = this.clicked ?? { time: -Infinity, at: 0 };
    const isSecond = event.timeStamp - time < DOUBLE_CLICK_MS && Math.abs(pixel - at) < DOUBLE_CLICK_PIXELS;
    this.clicked = isSecond ? null : { time: event.timeStamp, at: pixel };
    this.chart.click(pixel, { isSecond, isTouch: this.isTouch });
  }

  cancel(event) {
    if (!this.held.delete(event.pointerId) || this.isHolding) return;
    this.kind = null;
    this.chart.box(null);
    this.chart.settle();
  }
}
