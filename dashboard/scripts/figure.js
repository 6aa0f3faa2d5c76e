// The one figure: panels above one another that share the axis of steps. Data in, what
// Plotly.react takes out.

import { axisOf } from "./axes.js";
import { extent } from "./series.js";
import { countText, linearTicks, timeText, timeTicks } from "./ticks.js";

const LEFT = 54; // pixels, as all below
const RIGHT = 14;
const TITLE = 30; // room above a panel for its title
const RUG = 15;
const BOTTOM = 30;
const LANE = 14; // of the labels over the first panel
const FONT = 12;
const SPAN_OPACITY = 0.05;

// Where each panel lies, in pixels from the figure's top.
function places(panels, lanes = 0) {
  let top = Math.max(0, lanes * LANE - 8);
  const found = panels.map((panel) => {
    const place = { top: top + TITLE, bottom: top + TITLE + panel.height };
    place.rug = panel.rug ? [place.bottom, place.bottom + RUG] : null;
    top = place.rug ? place.rug[1] : place.bottom;
    return place;
  });
  return { panels: found, height: top + BOTTOM, plotHeight: top };
}

export function figure({ header, lines, rug, span, picked, width }, palette) {
  const flags = flagged(header, span, picked, width - LEFT - RIGHT);
  const lanes = Math.max(0, ...flags.map((flag) => flag.lane + 1));
  const { panels: where, height, plotHeight } = places(header.panels, lanes);
  const share = (pixels) => Math.min(1, Math.max(0, 1 - pixels / plotHeight));
  const layout = base(width, height, palette);
  const data = [];
  header.panels.forEach((panel, at) => {
    const axis = at ? `y${2 * at + 1}` : "y";
    const seen = seenIn(panel, lines, span);
    layout[axis.replace("y", "yaxis")] = {
      ...axisOf(panel.kind, seen), ...plain(palette),
      domain: [share(where[at].bottom), share(where[at].top)],
    };
    for (const line of panel.lines) data.push(trace(line, lines[line.key], axis, palette));
    layout.annotations.push(title(panel, share(where[at].top), width, palette));
    if (panel.guides) layout.shapes.push(...guides(panel.guides, axis, palette));
    if (where[at].rug) {
      const rugAxis = `y${2 * at + 2}`;
      layout[rugAxis.replace("y", "yaxis")] = {
        visible: false, fixedrange: true, range: [0, 1],
        domain: where[at].rug.map(share).reverse(),
      };
      data.push(rugTrace(rug, rugAxis, palette));
    }
  });
  layout.xaxis = stepAxis(header.unit, span, width, palette);
  layout.shapes.push(...marks(header, span, picked, palette));
  layout.annotations.push(...labels(flags, plotHeight, palette));
  return { data, layout, plotHeight };
}

function base(width, height, palette) {
  return {
    width, height, margin: { l: LEFT, r: RIGHT, t: 0, b: BOTTOM, pad: 0 },
    showlegend: false, hovermode: false,
    plot_bgcolor: "rgba(0,0,0,0)", paper_bgcolor: "rgba(0,0,0,0)",
    font: { family: palette.font, size: FONT, color: palette.muted },
    shapes: [], annotations: [],
  };
}

function plain(palette) {
  return {
    fixedrange: true, gridcolor: palette.grid, zeroline: false, showline: false,
    ticks: "outside", ticklen: 3, tickcolor: "rgba(0,0,0,0)",
    tickfont: { color: palette.muted, size: FONT - 1 },
  };
}

const AXES = {
  step(range, most) {
    const at = linearTicks(range, most).filter(Number.isInteger);
    return [at, at.map((step, n) => (n ? "" : "step ") + countText(step))];
  },
  second(range, most) {
    const at = timeTicks(range, most);
    return [at, at.map(timeText)];
  },
};

function stepAxis(unit, span, width, palette) {
  const range = span[0] < span[1] ? span : [span[0] - 1, span[1] + 1];
  const [tickvals, ticktext] = AXES[unit](range, Math.max(2, Math.floor(width / 110)));
  return {
    range, tickvals, ticktext, showgrid: false, zeroline: false,
    showline: true, linecolor: palette.grid, ticks: "outside", ticklen: 4, tickcolor: palette.grid,
    tickfont: { color: palette.muted, size: FONT - 1 },
    anchor: "free", position: 0, side: "bottom",
  };
}

function seenIn(panel, lines, span) {
  const found = panel.lines.map((line) => extent(lines[line.key], span, line.stepped)).filter(Boolean);
  for (const guide of panel.guides ?? []) if (guide.fits) found.push([Math.min(guide.low, guide.value), Math.max(guide.high, guide.value)]);
  if (!found.length) return null;
  return [Math.min(...found.map((one) => one[0])), Math.max(...found.map((one) => one[1]))];
}

function trace(line, points, yaxis, palette) {
  const color = palette[line.color];
  const alone = lonely(points);
  return {
    type: "scatter", mode: alone.size ? "lines+markers" : "lines", x: points.x, y: points.y,
    xaxis: "x", yaxis, connectgaps: false, hoverinfo: "skip", opacity: line.faint ? 0.45 : 1,
    line: { color, width: line.width ?? 1.6, dash: line.dash, shape: line.stepped ? "hv" : "linear" },
    ...(alone.size && { marker: { color, line: { width: 0 }, size: points.x.map((_, at) => (alone.has(at) ? 4 : 0)) } }),
  };
}

// Points between two breaks: no line would show them.
function lonely({ y }) {
  const found = new Set();
  const broken = (at) => at < 0 || at >= y.length || Number.isNaN(y[at]);
  for (let at = 0; at < y.length; at++) if (!broken(at) && broken(at - 1) && broken(at + 1)) found.add(at);
  return found;
}

// One path for all ticks: thousands of elements would take seconds to paint.
function rugTrace(rug, yaxis, palette) {
  const x = [];
  const y = [];
  for (const tick of rug) {
    x.push(tick.step, tick.step, null);
    y.push(0.05, 0.85, null);
  }
  return {
    type: "scatter", mode: "lines", x, y, xaxis: "x", yaxis, hoverinfo: "skip",
    line: { color: palette.skip, width: 1.5, simplify: false },
  };
}

const NARROW = 620; // less than this, a title has no room for its asides

function title(panel, y, width, palette) {
  const parts = panel.title.filter(([words]) => width >= NARROW || !words.startsWith(", "));
  return {
    text: parts.map(([words, color]) => `<span style="color:${palette[color]};font-weight:${color === "muted" ? 400 : 650}">${words}</span>`).join(""),
    xref: "paper", yref: "paper", x: 0, y, xanchor: "left", yanchor: "bottom", yshift: 3,
    showarrow: false, font: { size: FONT + 0.5, color: palette.ink, weight: 600 },
  };
}

// The advised value with its interval, or a level: a dotted line, and a pale band where there is one.
function guides(list, yref, palette) {
  return list.flatMap((guide) => {
    const color = palette[guide.color];
    const line = {
      type: "line", xref: "paper", x0: 0, x1: 1, yref, y0: guide.value, y1: guide.value,
      line: { color, width: 1.5, dash: "dot" },
    };
    const band = {
      type: "rect", xref: "paper", x0: 0, x1: 1, yref, y0: guide.low, y1: guide.high,
      fillcolor: color, opacity: 0.16, line: { width: 0 }, layer: "below",
    };
    return guide.low < guide.high ? [band, line] : [line];
  });
}

function marks(header, span, picked, palette) {
  const found = header.marks.map((mark) => ({
    type: "rect", xref: "x", x0: mark.first - 0.5, x1: mark.last + 0.5, yref: "paper", y0: 0, y1: 1,
    fillcolor: palette[mark.color], opacity: SPAN_OPACITY, line: { width: 0 }, layer: "below",
  }));
  if (header.restart !== null) found.push(upright(header.restart, palette.advice, "dash", 1.5));
  if (picked !== null) found.push(upright(picked, palette.ink, "solid", 1));
  return found;
}

function upright(step, color, dash, width) {
  return {
    type: "line", xref: "x", x0: step, x1: step, yref: "paper", y0: 0, y1: 1,
    line: { color, width, dash },
  };
}

// What the spans and upright lines are, said above the first panel; those that would lie over one
// another go to a lower lane.
function labels(flags, plotHeight, palette) {
  return flags.map((flag) => ({
    text: flag.text, xref: "x", x: flag.at, yref: "paper", y: 1 - (flag.lane * LANE) / plotHeight,
    yanchor: "top", showarrow: false, xanchor: flag.left ? "right" : "left", xshift: flag.left ? -4 : 3,
    font: { size: FONT - 1, color: palette[flag.color] },
  }));
}

// Where each of these labels stands: its step, its lane, and whether it reads to the left.
function flagged(header, span, picked, width) {
  const wanted = header.marks
    .filter((mark) => mark.last >= span[0])
    .map((mark) => ({ at: Math.max(mark.first, span[0]), text: mark.label, color: mark.color }));
  if (header.restart !== null) wanted.push({ at: header.restart, text: "restart", color: "advice", left: true });
  if (picked !== null) wanted.push({ at: picked, text: `step ${countText(picked)}`, color: "ink" });
  const ends = []; // of each lane's taken stretches, in pixels
  const pixel = (step) => ((step - span[0]) / (span[1] - span[0] || 1)) * width;
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

export const MARGINS = { left: LEFT, right: RIGHT };
