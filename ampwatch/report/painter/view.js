// How a reader chose to see a chart, and the short text that the address keeps of it.

export const PLAIN = Object.freeze({
  axis: null, // the key of what the lines are drawn over; null for the steps
  smooth: 0, // over so many steps; 0 for not at all
  way: "mean", // or median
  band: false, // from the lowest to the highest value
  cut: false, // whether single values far out may leave the panel
  logs: [], // panels with a logarithmic axis, by the key of their first line
  linear: [], // and those with a linear one; all others choose for themselves
  hidden: [], // lines
  solo: [], // lines shown alone in their panel
});

const LISTS = { l: "logs", n: "linear", h: "hidden", o: "solo" };
const SWITCHES = { b: "band", c: "cut" };
const WAYS = { e: "mean", m: "median" };

// Signs that an address leaves as they are: parts stand between "~".
export function textOf(view) {
  const parts = [];
  if (view.axis !== null) parts.push(`x-${coded(view.axis)}`);
  if (view.smooth) parts.push(`${letterOf(WAYS, view.way)}-${view.smooth}`);
  for (const [letter, name] of Object.entries(SWITCHES)) if (view[name]) parts.push(letter);
  for (const [letter, name] of Object.entries(LISTS)) parts.push(...view[name].map((key) => `${letter}-${coded(key)}`));
  return parts.join("~");
}

// What is not understood is left out: an address may be old, or written by hand.
export function viewOf(text) {
  const view = { ...PLAIN };
  for (const part of (text ?? "").split("~")) {
    const letter = part[0];
    const rest = decoded(part.slice(2));
    if (letter === "x" && rest) view.axis = rest;
    else if (WAYS[letter] && Number(rest) > 0) Object.assign(view, { way: WAYS[letter], smooth: Number(rest) });
    else if (SWITCHES[letter]) view[SWITCHES[letter]] = true;
    else if (LISTS[letter] && rest) view[LISTS[letter]] = [...view[LISTS[letter]], rest];
  }
  return view;
}

const coded = (key) => encodeURIComponent(key).replaceAll("~", "%7E");

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

function letterOf(names, name) {
  return Object.keys(names).find((letter) => names[letter] === name);
}

// The lines of a panel that are drawn; of those that are hidden, the legend tells.
export function shownLines(panel, view) {
  const alone = panel.lines.filter(({ key }) => view.solo.includes(key));
  if (alone.length) return alone;
  return panel.lines.filter(({ key }) => !view.hidden.includes(key));
}

// The view with a line hidden or shown.
export function toggled(view, panel, key) {
  const isShown = shownLines(panel, view).some((line) => line.key === key);
  const keys = panel.lines.map((line) => line.key);
  const wereHidden = keys.filter((one) => !shownLines(panel, view).some((line) => line.key === one));
  const hidden = isShown ? [...wereHidden, key] : wereHidden.filter((one) => one !== key);
  return { ...view, solo: without(view.solo, keys), hidden: [...without(view.hidden, keys), ...hidden] };
}

// The view with a line alone in its panel, or no longer.
export function soloed(view, panel, key) {
  const others = without(view.solo, panel.lines.map((line) => line.key));
  return { ...view, solo: view.solo.includes(key) ? others : [...others, key] };
}

// The view with another kind of axis for a panel.
export function scaled(view, key, isLog) {
  const [logs, linear] = [without(view.logs, [key]), without(view.linear, [key])];
  return isLog ? { ...view, logs: [...logs, key], linear } : { ...view, logs, linear: [...linear, key] };
}

const without = (list, keys) => list.filter((one) => !keys.includes(one));
