// Skipped steps as ticks: none is ever lost from sight. Those that fall into one column of pixels
// merge into one tick that knows its count; zooming separates them.

// `cells` come from the server, finer than pixels, each with its first and last event; `since` are
// the single events after them. Both are in order.
export function ticks(cells, since, [first, last], pixels) {
  const column = (step) => Math.floor(((step - first) / (last - first || 1)) * pixels);
  const found = [];
  const put = (step, count) => {
    if (step < first || step > last) return;
    const before = found[found.length - 1];
    if (before && before.column === column(step)) before.count += count;
    else found.push({ step, count, column: column(step) });
  };
  for (let at = 0; at < (cells?.first?.length ?? 0); at++) {
    const one = cells.first[at] === cells.last[at];
    put(cells.first[at], one ? cells.count[at] : cells.count[at] - 1);
    if (!one) put(cells.last[at], 1);
  }
  for (const step of since ?? []) put(step, 1);
  return found;
}

// How many events the ticks within reach of a step stand for.
export function countNear(found, step, reach) {
  let count = 0;
  for (const tick of found) if (Math.abs(tick.step - step) <= reach) count += tick.count;
  return count;
}
