// A line made smooth, over so many steps: by distance, not by points, so it is the same however the
// points were thinned. What lies before and after counts alike: nothing moves to the right.

export function smoothed(line, { smooth, way }) {
  const out = new Float64Array(line.y.length).fill(NaN);
  for (const [from, to] of stretches(line)) WAYS[way](line, from, to, smooth / 2, out);
  return out;
}

// Where a line's unbroken parts begin and end.
function stretches({ x, y }) {
  const found = [];
  let from = null;
  for (let at = 0; at <= y.length; at++) {
    const goesOn = at < y.length && !Number.isNaN(y[at]) && (from === null || x[at] >= x[at - 1]);
    if (from !== null && !goesOn) {
      found.push([from, at]);
      from = null;
    }
    if (at < y.length && from === null && !Number.isNaN(y[at])) from = at;
  }
  return found;
}

const WAYS = { mean, median };

// Each value's share falls by e over `reach` steps, and grows with the steps that it stands for.
function mean({ x, y }, from, to, reach, out) {
  const share = (at) => (x[Math.min(to - 1, at + 1)] - x[Math.max(from, at - 1)]) / 2 || 1;
  const ahead = new Float64Array(to - from);
  const weights = new Float64Array(to - from);
  let [sum, weight] = [0, 0];
  for (let at = to - 1; at >= from; at--) { // what comes after each point
    ahead[at - from] = sum;
    weights[at - from] = weight;
    const fade = at > from ? Math.exp((x[at - 1] - x[at]) / reach) : 0;
    sum = (sum + share(at) * y[at]) * fade;
    weight = (weight + share(at)) * fade;
  }
  [sum, weight] = [0, 0];
  for (let at = from; at < to; at++) { // and before it
    const fade = at > from ? Math.exp((x[at - 1] - x[at]) / reach) : 0;
    sum = sum * fade + share(at) * y[at];
    weight = weight * fade + share(at);
    out[at] = (sum + ahead[at - from]) / (weight + weights[at - from]);
  }
}

function median(line, from, to, reach, out) {
  around(line, from, to, reach, (sorted, at) => (out[at] = quantile(sorted, 0.5)));
}

// Calls `take` for each point with the ordered values within `reach` steps of it.
function around({ x, y }, from, to, reach, take) {
  const sorted = [];
  let [first, next] = [from, from];
  for (let at = from; at < to; at++) {
    while (next < to && x[next] <= x[at] + reach) sorted.splice(placeOf(sorted, y[next]), 0, y[next++]);
    while (x[first] < x[at] - reach) sorted.splice(placeOf(sorted, y[first++]), 1);
    take(sorted, at);
  }
}

function quantile(sorted, share) {
  const at = share * (sorted.length - 1);
  const low = Math.floor(at);
  return sorted[low] + (at - low) * (sorted[Math.ceil(at)] - sorted[low]);
}

// The first place in an ordered list whose value is not less.
function placeOf(sorted, value) {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

// --- what lies far out ---------------------------------------------------------------------------

const NEIGHBOURS = 15; // on each side, that a value is compared with
const FAR = 4; // times their middle half's width, from their median
const LEAST = 24; // points: of fewer none is far out

// The lowest and highest value in view that are not far from their neighbours; null of nothing.
export function usualExtent({ x, y }, [first, last], isLog) {
  const values = [];
  for (let at = 0; at < x.length; at++) {
    const value = isLog ? Math.log10(y[at]) : y[at];
    if (x[at] >= first && x[at] <= last && Number.isFinite(value)) values.push(value);
  }
  let [low, high] = [Infinity, -Infinity];
  const take = (sorted, at) => {
    const away = Math.abs(values[at] - quantile(sorted, 0.5));
    if (values.length >= LEAST && away > FAR * (quantile(sorted, 0.75) - quantile(sorted, 0.25))) return;
    low = Math.min(low, values[at]);
    high = Math.max(high, values[at]);
  };
  around({ x: values.map((_, at) => at), y: values }, 0, values.length, NEIGHBOURS, take);
  return low > high ? null : [low, high].map((value) => (isLog ? 10 ** value : value));
}
