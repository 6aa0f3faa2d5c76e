// A line as the path of an SVG: what cannot be seen is left out, so that thousands of points are drawn
// within one frame.

const DENSE = 0.25; // of the columns of pixels hold several points

// `x(step, pass)` and `y(value)` give pixels. A line holds its value to the next point where it is
// `stepped`, and breaks where a value is absent or the steps go back. Before the view one point is
// drawn, for the line that comes in, and after it one.
export function pathOf({ x: steps, y: values, stepped }, x, y, [left, right]) {
  const pen = new Pen(stepped);
  let pass = 0;
  let before = -Infinity;
  let outside = -1; // the last point before the view
  let isPast = false;
  for (let at = 0; at < steps.length; at++) {
    const step = steps[at];
    const isBack = step < before;
    before = step;
    if (isBack) pass++;
    if (isBack || values[at] !== values[at]) { // absent: not a number
      pen.lift();
      outside = -1;
      isPast = false;
      if (!isBack || values[at] !== values[at]) continue;
    }
    if (isPast) continue;
    const px = x(step, pass);
    if (px < left) {
      outside = at;
      continue;
    }
    if (outside >= 0) pen.add(x(steps[outside], pass), y(values[outside]));
    outside = -1;
    pen.add(px, y(values[at]));
    isPast = px > right;
  }
  pen.lift();
  return { path: pen.path, isDense: pen.crowded > DENSE * (right - left) };
}

// Of a column of pixels it draws the first, the lowest, the highest and the last point: no other
// would be seen.
class Pen {
  constructor(stepped) {
    this.stepped = stepped;
    this.path = "";
    this.isDown = false;
    this.height = NaN; // where the line has come to
    this.count = 0; // of points in this column
    this.crowded = 0; // columns with more than two
    this.column = this.px = this.first = this.low = this.high = this.last = this.lastX = NaN;
    this.lowAt = this.highAt = 0;
  }

  add(px, py) {
    const column = Math.floor(px);
    if (column !== this.column) {
      this.flush();
      this.column = column;
      this.px = px;
      this.first = this.low = this.high = py;
      this.lowAt = this.highAt = 0;
    } else if (py < this.low) {
      this.low = py;
      this.lowAt = this.count;
    } else if (py > this.high) {
      this.high = py;
      this.highAt = this.count;
    }
    this.last = py;
    this.lastX = px;
    this.count++;
  }

  flush() {
    const { count } = this;
    if (!count) return;
    this.to(this.px, this.first);
    if (count > 2) {
      this.crowded++;
      const [one, other] = this.lowAt < this.highAt ? [this.low, this.high] : [this.high, this.low];
      this.up(one);
      this.up(other);
    }
    if (count > 1) this.to(this.lastX, this.last);
    this.count = 0;
  }

  to(px, py) {
    const [along, down] = [tenth(px), tenth(py)];
    if (!this.isDown) this.path += `M${along},${down}`;
    else if (this.stepped) this.path += down === this.height ? `H${along}` : `H${along}V${down}`;
    else this.path += `L${along},${down}`;
    this.isDown = true;
    this.height = down;
  }

  up(py) {
    const down = tenth(py);
    if (down !== this.height) this.path += `V${down}`;
    this.height = down;
  }

  lift() {
    this.flush();
    this.isDown = false;
    this.column = NaN;
  }
}

const tenth = (pixel) => Math.round(pixel * 10) / 10;

// From the lowest to the highest value of each stretch of pixels, as a closed path.
export function extremesOf({ x: steps, y: values }, x, y, [left, right], wide) {
  const cells = new Map();
  let pass = 0;
  for (let at = 0; at < steps.length; at++) {
    if (at && steps[at] < steps[at - 1]) pass++;
    const px = x(steps[at], pass);
    if (Number.isNaN(values[at]) || px < left || px > right) continue;
    const cell = Math.floor((px - left) / wide);
    const py = y(values[at]);
    const found = cells.get(cell);
    if (!found) cells.set(cell, [py, py]);
    else cells.set(cell, [Math.min(found[0], py), Math.max(found[1], py)]);
  }
  const rectangle = ([cell, [top, bottom]]) => {
    const from = tenth(left + cell * wide);
    return `M${from},${tenth(top - 0.5)}H${tenth(Math.min(right, from + wide))}V${tenth(bottom + 0.5)}H${from}Z`;
  };
  return [...cells].map(rectangle).join("");
}
