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

// A text of the address in which parts stand between "~".
export const coded = (key) => encodeURIComponent(key).replaceAll("~", "%7E");

export function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

function letterOf(names, name) {
  return Object.keys(names).find((letter) => names[letter] === name);
}

// By what a line is hidden and lit: lines of one run in several panels have one label for all.
export const nameOf = (line) => line.group || line.key;

// The lines of a panel that are drawn; of those that are hidden, the legend tells.
export function shownLines(panel, view) {
  const alone = panel.lines.filter((line) => view.solo.includes(nameOf(line)));
  const isOther = panel.lines[0]?.group && view.solo.some((name) => name.startsWith(GROUP));
  if (alone.length || isOther) return alone; // a run that is shown alone may have no line here
  return panel.lines.filter((line) => !view.hidden.includes(nameOf(line)));
}

const GROUP = "run:"; // every group's name begins so

// What is said of a line apart from its panel: of a group, the run or the rank that it is of.
export const labelOf = ({ group, label }) => (group ? group.slice(GROUP.length) : label);

// What each panel's legend is of: its own lines or, of lines that are grouped, all at the first panel of them.
export function legendsOf(panels) {
  const grouped = panels.flatMap(({ lines }) => lines.filter(({ group }) => group));
  const groups = new Map(grouped.map((line) => [line.group, { ...line, label: labelOf(line) }]));
  const own = panels.map((panel) => (panel.lines.length > 1 && !panel.lines[0].group ? panel : NO_LEGEND));
  const first = panels.findIndex(({ lines }) => lines[0]?.group);
  return own.map((panel, number) => (number === first ? { lines: [...groups.values()] } : panel));
}

const NO_LEGEND = { lines: [] };

// The view with a line hidden or shown.
export function toggled(view, panel, key) {
  const isShown = shownLines(panel, view).some((line) => nameOf(line) === key);
  const keys = panel.lines.map(nameOf);
  const wereHidden = keys.filter((one) => !shownLines(panel, view).some((line) => nameOf(line) === one));
  const hidden = isShown ? [...wereHidden, key] : wereHidden.filter((one) => one !== key);
  return { ...view, solo: without(view.solo, keys), hidden: [...without(view.hidden, keys), ...hidden] };
}

// The view with a line alone in its panel, or no longer.
export function soloed(view, panel, key) {
  const others = without(view.solo, panel.lines.map(nameOf));
  return { ...view, solo: view.solo.includes(key) ? others : [...others, key] };
}

// The view with another kind of axis for a panel.
export function scaled(view, key, isLog) {
  const [logs, linear] = [without(view.logs, [key]), without(view.linear, [key])];
  return isLog ? { ...view, logs: [...logs, key], linear } : { ...view, logs, linear: [...linear, key] };
}

const without = (list, keys) => list.filter((one) => !keys.includes(one));
