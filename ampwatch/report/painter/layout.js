// Where everything of a chart lies: panels above one another that share the axis of steps. It turns
// data into what paint.js draws, in values of each axis and pixels from the chart's top.

import { axisOf, noAxis } from "./axes.js";
import { shortened, tone, widthOf } from "./elements.js";
import { extent } from "./lines.js";
import { isNoisy } from "./scene.js";
import { usualExtent } from "./smoothing.js";
import { countText, distinctTexts, linearTicks, numberText, timeText, timeTicks } from "./ticks.js";
import { nameOf, shownLines } from "./view.js";

export const LEFT = 54; // pixels, as all below
export const RIGHT = 14;
const TITLE = 30; // room above a panel for its title,
const TITLE_LINE = 16; // for each more line of it,
export const TITLE_SIZE = 12.5;
const BUTTON = 58; // and beside it for the button of its axis
const RUG = 15;
const BOTTOM = 30;
export const LANE = 14; // of the labels over the first panel
const TICK_ROOM = 110; // between two labels of the axis of steps
const MOST_NAMED = 8; // lines of a panel with their names at their ends
const LETTERS = 28; // of such a name
const AXIS_LETTERS = 16;

// `scene` is what there is to see and how: header, lines, rug, span, picked, view, places, axis;
// `heads` are the heights of the panels' legends.
export function layout(scene, width, heads, family) {
  const { header, lines, rug, picked, view, places, lit } = scene;
  const shown = spanOf(scene);
  const plotWidth = width - LEFT - RIGHT;
  const range = [places.at(shown[0]), places.at(shown[1])];
  const flags = flagged(header, shown, picked, plotWidth, (step) => ((places.at(step) - range[0]) / (range[1] - range[0] || 1)) * plotWidth);
  const lanes = Math.max(0, ...flags.map((flag) => flag.lane + 1));
  let bottom = Math.max(0, lanes * LANE - 8);
  const panels = header.panels.map((panel, number) => {
    const visible = shownLines(panel, view);
    const { axis, outside } = axisAndOutside(panel, visible, lines, shown, view);
    const title = wrapped([...panel.title, ...cutText(outside)], plotWidth - BUTTON, family);
    const head = bottom + TITLE + (title.length - 1) * TITLE_LINE;
    const top = head + heads[number];
    const ground = top + panel.height;
    bottom = panel.rug ? ground + RUG : ground;
    return {
      top, head, bottom: ground, title, axis, outside,
      lines: visible.map((line) => ({ ...lineOf(line, lines[line.key], lit), hasBand: view.band && isNoisy(panel, line) })),
      names: namesOf(visible),
      canBeLog: canBeLog(panel, lines),
      guides: (panel.guides ?? []).map((guide) => ({ ...guide, color: tone(guide.color) })),
      rug: panel.rug ? { top: ground, bottom, ticks: rug, color: tone("skip") } : null,
    };
  });
  return {
    width, height: bottom + BOTTOM, plotHeight: bottom, plotWidth,
    span: shown, range, ticks: axisTicks(scene, range, width), panels,
    bands: header.marks.map((mark) => ({ ...mark, color: tone(mark.color) })),
    uprights: uprights(header, picked),
    flags: flags.map((flag) => ({ ...flag, color: tone(flag.color) })),
  };
}

// The steps in view; a single one has room about it.
export function spanOf({ span }) {
  return span[0] < span[1] ? span : [span[0] - 1, span[1] + 1];
}

function lineOf(line, points, lit) {
  const isLit = lit === nameOf(line);
  return { ...line, ...points, color: tone(line.color), isDim: lit !== null && !isLit, isLit };
}

// --- the axis of steps, or of what stands for them ------------------------------------------------

const TICKS = {
  step(range, most) {
    const at = linearTicks(range, most).filter((step) => Number.isInteger(step) && step >= 0); // a single step has room about it
    return at.map((step, n) => [step, (n ? "" : "step ") + countText(step)]);
  },
  second(range, most) {
    const seconds = timeTicks(range, most);
    const texts = distinctTexts(seconds, timeText, [3, 4, 5, 6, 7]);
    return seconds.map((second, at) => [second, texts[at]]);
  },
  number(range, most, label) {
    return linearTicks(range, most).map((value, n) => [value, n ? numberText(value) : `${shortened(label, AXIS_LETTERS)} ${numberText(value)}`]);
  },
};

function axisTicks({ header, axis }, range, width) {
  return TICKS[axis?.kind ?? header.unit](range, Math.max(2, Math.floor(width / TICK_ROOM)), axis?.label);
}

// --- a panel's axis -------------------------------------------------------------------------------

// Its range, and how many of the points in view lie outside of it, where that is wanted.
function axisAndOutside(panel, visible, lines, span, view) {
  if (!visible.length) return { axis: noAxis, outside: 0 };
  const { key } = panel.lines[0];
  const isLog = view.logs.includes(key) ? true : view.linear.includes(key) ? false : null;
  const whole = axisOf(panel.kind, seenIn(panel, visible, lines, span, extent), isLog);
  if (!view.cut || panel.kind === "power") return { axis: whole, outside: 0 };
  const usual = (line, within, stepped) => (stepped ? extent(line, within, stepped) : usualExtent(line, within, whole.type === "log"));
  const axis = axisOf(panel.kind, seenIn(panel, visible, lines, span, usual), isLog);
  return { axis, outside: outsideOf(visible, lines, span, axis) };
}

function seenIn(panel, visible, lines, span, extentOf) {
  const found = visible.map((line) => extentOf(lines[line.key], span, line.stepped)).filter(Boolean);
  for (const guide of panel.guides ?? []) if (guide.fits) found.push([Math.min(guide.low, guide.value), Math.max(guide.high, guide.value)]);
  if (!found.length) return null;
  return [Math.min(...found.map((one) => one[0])), Math.max(...found.map((one) => one[1]))];
}

function outsideOf(visible, lines, [first, last], { type, range }) {
  const [low, high] = type === "log" ? range.map((power) => 10 ** power) : range;
  let count = 0;
  for (const { key } of visible) {
    const { x, y } = lines[key];
    for (let at = 0; at < x.length; at++) if (x[at] >= first && x[at] <= last && (y[at] < low || y[at] > high)) count++;
  }
  return count;
}

// Whether all of its values have a logarithm, and there is a choice.
function canBeLog(panel, lines) {
  return panel.lines.length > 0 && panel.kind !== "power" && panel.lines.every(({ key }) => lines[key].low > 0 && lines[key].low < Infinity);
}

// --- words ----------------------------------------------------------------------------------------

function cutText(count) {
  return count ? [[`, ${countText(count)} drawn ${count === 1 ? "point lies" : "points lie"} outside`, "skip"]] : [];
}

// A title in as many lines as it needs: on a phone as well, all of it is said.
function wrapped(title, room, family) {
  const found = [[]];
  let used = 0;
  for (const [words, color] of title) {
    const weight = color === "muted" ? 400 : 650;
    for (const word of words.match(/\s*\S+\s*$|\s*\S+/g) ?? []) {
      const width = widthOf(word, TITLE_SIZE, weight, family);
      const isNew = used > 0 && used + width > room;
      if (isNew) found.push([]);
      used = isNew ? width : used + width;
      found[found.length - 1].push({ words: isNew ? word.trimStart() : word, color: tone(color), weight });
    }
  }
  return found;
}

// What tells the lines of a panel apart, at their ends: a colour alone would not do.
function namesOf(visible) {
  if (visible.length < 2 || visible.length > MOST_NAMED) return [];
  const labels = visible.map(({ label }) => label);
  const same = sharedStart(labels);
  return labels.map((label) => shortened(label.slice(same) || label, LETTERS));
}

// How many letters, in whole words, all labels begin with.
function sharedStart(labels) {
  let same = 0;
  while (same < labels[0].length && labels.every((label) => label[same] === labels[0][same])) same++;
  return labels[0].slice(0, same).lastIndexOf(" ") + 1;
}

function uprights(header, picked) {
  const found = [];
  if (header.restart !== null) found.push({ step: header.restart, color: tone("advice"), dash: "dash", width: 1.5 });
  if (picked !== null) found.push({ step: picked, color: tone("ink"), width: 1 });
  return found;
}

// What the spans and upright lines are, said above the first panel: each label's step, whether it
// reads to the left, and its lane; those that would lie over one another go to a lower one.
function flagged(header, span, picked, width, pixel) {
  const wanted = header.marks
    .filter((mark) => mark.last >= span[0])
    .map((mark) => ({ at: Math.max(mark.first, span[0]), text: mark.label, color: mark.color }));
  if (header.restart !== null) wanted.push({ at: header.restart, text: "restart", color: "advice", left: true });
  if (picked !== null) wanted.push({ at: picked, text: `step ${countText(picked)}`, color: "ink" });
  const ends = []; // of each lane's taken stretches, in pixels
  const inView = wanted.filter((flag) => flag.at >= span[0] && flag.at <= span[1]);
  return inView.map((flag) => {
    const length = 7 * flag.text.length + 10;
    const at = pixel(flag.at);
    const left = (flag.left && at > length) || at + length > width;
    const taken = left ? [at - length, at] : [at, at + length];
    let lane = 0;
    while (ends[lane]?.some(([from, to]) => from < taken[1] && taken[0] < to)) lane++;
    (ends[lane] ??= []).push(taken);
    return { ...flag, left, lane };
  });
}
