// An axis for the values in view: its range, its ticks, and how a value on it is written.

import { distinctTexts, linearTicks, logTicks, numberText, powerText, powerTicks } from "./ticks.js";

const LOG_RATIO = { number: 30, rate: 8 }; // a linear axis would hide the smaller values
const ROOM = 0.08; // of the range, above and below
const FLAT = 1e-5; // of the values: what differs by less is drawn as a level line
const DIGITS = [4, 5, 6, 7, 8]; // of a label: the first that tells neighbours apart

// Of a panel without a value in view.
export const noAxis = { type: "linear", range: [0, 1], tickvals: [], ticktext: [] };

// `isLog` is what the reader chose: true, false, or null to leave it to the values.
export function axisOf(kind, seen, isLog = null) {
  if (!seen) return noAxis;
  const [low, high] = seen;
  if (kind === "power") return powerAxis(seen);
  const wanted = isLog ?? high > (LOG_RATIO[kind] ?? LOG_RATIO.number) * low;
  if (kind === "share" && high === 0) return linearAxis(0, 1); // nothing of it is no range
  return low > 0 && wanted ? logAxis(low, high) : linearAxis(low, high);
}

function powerAxis([low, high]) {
  const range = [Math.floor(low) - 0.6, Math.ceil(high) + 0.6];
  return { type: "linear", range, ...labelled(powerTicks(range), powerText) };
}

function logAxis(low, high) {
  const room = ROOM * Math.log10(high / low) || 0.1;
  const range = [Math.log10(low) - room, Math.log10(high) + room];
  return { type: "log", range, ...labelled(logTicks(range.map((v) => 10 ** v)), numberText) };
}

function linearAxis(low, high) {
  let range = [low - ROOM * (high - low), high + ROOM * (high - low)];
  const isFlat = high - low <= FLAT * Math.max(Math.abs(low), Math.abs(high));
  if (isFlat) range = low === 0 ? [-1, 1] : [Math.min(0, 1.25 * low), Math.max(0, 1.25 * low)];
  return { type: "linear", range, ...labelled(linearTicks(range), numberText) };
}

function labelled(tickvals, text) {
  return { tickvals, ticktext: distinctTexts(tickvals, text, DIGITS) };
}
