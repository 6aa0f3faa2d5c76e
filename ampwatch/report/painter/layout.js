// Where everything of a chart lies: panels above one another that share the axis of steps. It turns
// data into what paint.js draws, in values of each axis and pixels from the chart's top.

import { axisOf, noAxis } from "./axes.js";
import { tone } from "./elements.js";
import { extent } from "./lines.js";
import { countText, linearTicks, timeText, timeTicks } from "./ticks.js";

export const LEFT = 54; // pixels, as all below
export const RIGHT = 14;
const TITLE = 30; // room above a panel for its title
const RUG = 15;
const BOTTOM = 30;
export const LANE = 14; // of the labels over the first panel
const NARROW = 620; // less than this, a title has no room for its asides
const TICK_ROOM = 110; // between two labels of the axis of steps

export function layout({ header, lines, rug, span, picked, width }) {
  const shown = span[0] < span[1] ? span : [span[0] - 1, span[1] + 1];
  const flags = flagged(header, shown, picked, width - LEFT - RIGHT);
  const lanes = Math.max(0, ...flags.map((flag) => flag.lane + 1));
  let bottom = Math.max(0, lanes * LANE - 8);
  const panels = header.panels.map((panel) => {
    const top = bottom + TITLE;
    const ground = top + panel.height;
    bottom = panel.rug ? ground + RUG : ground;
    return {
      top, bottom: ground,
      title: title(panel, width),
      axis: panel.lines.length ? axisOf(panel.kind, seenIn(panel, lines, shown)) : noAxis,
      lines: panel.lines.map((line) => ({ ...line, ...lines[line.key], color: tone(line.color), lonely: lonely(lines[line.key]) })),
      guides: (panel.guides ?? []).map((guide) => ({ ...guide, color: tone(guide.color) })),
      rug: panel.rug ? { top: ground, bottom, ticks: rug, color: tone("skip") } : null,
    };
  });
  return {
    width, height: bottom + BOTTOM, plotHeight: bottom, plotWidth: width - LEFT - RIGHT,
    span: shown, ticks: stepTicks(header.unit, shown, width), panels,
    bands: header.marks.map((mark) => ({ ...mark, color: tone(mark.color) })),
    uprights: uprights(header, picked),
    flags: flags.map((flag) => ({ ...flag, color: tone(flag.color) })),
  };
}

const TICKS = {
  step(span, most) {
    const at = linearTicks(span, most).filter(Number.isInteger);
    return at.map((step, n) => [step, (n ? "" : "step ") + countText(step)]);
  },
  second(span, most) {
    return timeTicks(span, most).map((second) => [second, timeText(second)]);
  },
};

function stepTicks(unit, span, width) {
  return TICKS[unit](span, Math.max(2, Math.floor(width / TICK_ROOM)));
}

function seenIn(panel, lines, span) {
  const found = panel.lines.map((line) => extent(lines[line.key], span, line.stepped)).filter(Boolean);
  for (const guide of panel.guides ?? []) if (guide.fits) found.push([Math.min(guide.low, guide.value), Math.max(guide.high, guide.value)]);
  if (!found.length) return null;
  return [Math.min(...found.map((one) => one[0])), Math.max(...found.map((one) => one[1]))];
}

// Points between two breaks, by their place: no line would show them.
function lonely({ y }) {
  const found = [];
  const broken = (at) => at < 0 || at >= y.length || Number.isNaN(y[at]);
  for (let at = 0; at < y.length; at++) if (!broken(at) && broken(at - 1) && broken(at + 1)) found.push(at);
  return found;
}

function title(panel, width) {
  const parts = panel.title.filter(([words]) => width >= NARROW || !words.startsWith(", "));
  return parts.map(([words, color]) => ({ words, color: tone(color), weight: color === "muted" ? 400 : 650 }));
}

function uprights(header, picked) {
  const found = [];
  if (header.restart !== null) found.push({ step: header.restart, color: tone("advice"), dash: "dash", width: 1.5 });
  if (picked !== null) found.push({ step: picked, color: tone("ink"), width: 1 });
  return found;
}

// What the spans and upright lines are, said above the first panel: each label's step, whether it
// reads to the left, and its lane; those that would lie over one another go to a lower one.
function flagged(header, span, picked, width) {
  const wanted = header.marks
    .filter((mark) => mark.last >= span[0])
    .map((mark) => ({ at: Math.max(mark.first, span[0]), text: mark.label, color: mark.color }));
  if (header.restart !== null) wanted.push({ at: header.restart, text: "restart", color: "advice", left: true });
  if (picked !== null) wanted.push({ at: picked, text: `step ${countText(picked)}`, color: "ink" });
  const ends = []; // of each lane's taken stretches, in pixels
  const pixel = (step) => ((step - span[0]) / (span[1] - span[0])) * width;
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
