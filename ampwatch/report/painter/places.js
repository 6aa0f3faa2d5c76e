// Where on the axis a step lies: at itself, or at the time or another value that rises with the steps.
// A run that was resumed passes some steps twice; each pass has places of its own.

export class Places {
  // `line` gives some steps their places; between them they lie in proportion.
  constructor(line) {
    this.passes = line ? passesOf(line) : [];
    this.isStep = this.passes.length === 0;
  }

  // The place of a step; without a pass, in the last one that has come so far.
  at(step, pass = null) {
    if (this.isStep) return step;
    const found = this.passes[pass] ?? this.passes.findLast(({ x }) => x[0] <= step) ?? this.passes[0];
    return between(found.x, found.y, step);
  }

  // The step that lies there.
  step(place) {
    if (this.isStep) return place;
    const found = this.passes.findLast(({ y }) => y[0] <= place) ?? this.passes[0];
    return between(found.y, found.x, place);
  }
}

function passesOf({ x, y }) {
  const passes = [];
  for (let at = 0; at < x.length; at++) {
    if (Number.isNaN(y[at])) continue;
    let pass = passes[passes.length - 1];
    if (!pass || x[at] < pass.x[pass.x.length - 1]) passes.push((pass = { x: [], y: [] }));
    pass.x.push(x[at]);
    pass.y.push(y[at]);
  }
  return passes;
}

// The line through the two points about `value`, or, beyond the ends, through the last two.
function between(from, to, value) {
  if (from.length < 2) return to[0] + (value - from[0]);
  let low = 0;
  let high = from.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (from[middle] <= value) low = middle;
    else high = middle;
  }
  const length = from[high] - from[low];
  return length === 0 ? to[high] : to[low] + ((value - from[low]) / length) * (to[high] - to[low]);
}
