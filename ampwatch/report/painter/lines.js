// A line's points: those of the base, which are thinned, and the rows that came since.

const nothing = new Float64Array(0);

// Absent rows are left out, and a break is put where steps are missing for longer than `hole` or
// go back: a line across them would show what was not.
export function joined(base, tail, hole) {
  const x = Array.from(base?.x ?? nothing);
  const y = Array.from(base?.y ?? nothing);
  for (let row = 0; row < (tail?.x?.length ?? 0); row++) {
    if (Number.isNaN(tail.y[row])) continue;
    const ahead = x.length ? tail.x[row] - x[x.length - 1] : 1;
    if (ahead < 0 || ahead > hole) {
      x.push(x[x.length - 1]);
      y.push(NaN);
    }
    x.push(tail.x[row]);
    y.push(tail.y[row]);
  }
  return measured({ x, y });
}

// The line with its lowest value, and the points that stand alone: no line would show them.
export function measured({ x, y }) {
  const lonely = [];
  const isBroken = (at) => at < 0 || at >= y.length || Number.isNaN(y[at]);
  let low = Infinity;
  for (let at = 0; at < y.length; at++) {
    if (isBroken(at)) continue;
    if (y[at] < low) low = y[at];
    if (isBroken(at - 1) && isBroken(at + 1)) lonely.push(at);
  }
  return { x, y, low, lonely };
}

// The smallest and largest value within a span of the axis; null of nothing. A stepped line holds
// its value, so the point before the span counts as well.
export function extent(line, [first, last], stepped = false) {
  let low = Infinity;
  let high = -Infinity;
  let held = NaN;
  const take = (value) => {
    if (value < low) low = value;
    if (value > high) high = value;
  };
  for (let at = 0; at < line.x.length; at++) {
    const value = line.y[at];
    if (line.x[at] < first) held = value;
    else if (line.x[at] <= last && !Number.isNaN(value)) take(value);
  }
  if (stepped && !Number.isNaN(held)) take(held);
  return low <= high ? [low, high] : null;
}

// The value shown at a step: for stairs the one held, else the nearest point's, if near enough.
export function valueAt(line, step, reach, stepped = false) {
  let best = null;
  let distance = Infinity;
  for (let at = 0; at < line.x.length; at++) {
    if (Number.isNaN(line.y[at])) continue;
    const away = step - line.x[at];
    if (stepped ? away >= 0 && away <= distance : Math.abs(away) < distance) {
      distance = Math.abs(away);
      best = line.y[at];
    }
  }
  return stepped || distance <= reach ? best : null;
}

// Where a line is not finite: the first and the last step of each stretch.
export function stretchesOf(key, arrays) {
  const last = arrays[`odd.${key}.last`] ?? nothing;
  return Array.from(arrays[`odd.${key}.first`] ?? nothing, (first, at) => ({ first, last: last[at] }));
}
