// An axis for the values in view: its range and its ticks, and numbers as people read them.

const LOG_RATIO = { number: 30, rate: 8 }; // a linear axis would hide the smaller values
const FEW_ZEROS = { number: 0.05 }; // of the points: so few do not keep an axis from being logarithmic
const ROOM = 0.08; // of the range, above and below
const FLAT = 1e-5; // of the values: what differs by less is drawn as a level line
const DIGITS = [4, 5, 6, 7, 8]; // of a label: the first that tells neighbours apart

// Of a panel without a value in view.
export const noAxis = { type: "linear", range: [0, 1], tickvals: [], ticktext: [] };

// `seen` are the lowest and the highest value, the lowest one above 0, and the share of those that are 0.
// `isLog` is what the reader chose: true, false, or null to leave it to the values. On a logarithmic axis
// a 0 lies at the ground; what is to be drawn from 0 on, as a guide at 0 asks, is never logarithmic.
export function axisOf(kind, seen, isLog = null) {
  if (!seen) return noAxis;
  const [low, high, least = low, zeros = 0] = seen;
  if (kind === "power") return powerAxis(seen);
  const isWide = high > (LOG_RATIO[kind] ?? LOG_RATIO.number) * least;
  if (least > 0 && canBeLog(low, high) && (isLog ?? (isWide && zeros <= (FEW_ZEROS[kind] ?? 0)))) return logAxis(least, high);
  if (kind === "share" && high === 0) return linearAxis(0, 1); // nothing of it is no range
  return linearAxis(low, high);
}

export const canBeLog = (low, high) => low >= 0 && high > 0;

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

// --- ticks and numbers --------------------------------------------------------------------------

// Where an axis has its ticks, and numbers as people read them.

const SUPERSCRIPTS = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

export function powerText(exponent) {
  const whole = Math.round(exponent);
  if (Math.abs(exponent - whole) > 1e-4) return numberText(2 ** exponent);
  return "2" + [...String(whole)].map((sign) => SUPERSCRIPTS[sign]).join("");
}

// At most so many significant digits; what is very small or large with an exponent, as rates are
// written.
export function numberText(value, digits = 4) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) {
    const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
    return `${Number(mantissa)}e${Number(exponent)}`;
  }
  return String(Number(value.toPrecision(digits)));
}

export function countText(value) {
  return Math.round(value).toLocaleString("en-US");
}

// Whole exponents, a stride that gives four to seven ticks.
export function powerTicks([low, high]) {
  const stride = [1, 2, 4, 8, 16, 32].find((size) => (high - low) / size <= 6) ?? 64;
  return between(Math.ceil(low / stride) * stride, high, stride);
}

// 1, 2 or 5 times a power of ten.
export function linearTicks([low, high], most = 5) {
  const rough = (high - low) / most || 1;
  const unit = 10 ** Math.floor(Math.log10(rough));
  return spread([low, high], [0.2, 0.5, 1, 2, 5, 10].map((size) => size * unit), most).map((v) => Number(v.toPrecision(12)));
}

// Powers of ten, and where these are few 1, 2 and 5 times them.
function logTicks([low, high]) {
  const decades = between(Math.floor(Math.log10(low)), Math.log10(high), 1).map((exponent) => 10 ** exponent);
  const among = (factors) =>
    decades.flatMap((decade) => factors.map((factor) => factor * decade)).filter((v) => v >= low && v <= high);
  const found = [[1], [1, 3], [1, 2, 5]].map(among).find((list) => list.length >= 2);
  if (!found) return linearTicks([low, high]).filter((value) => value > 0);
  return found.filter((_, at) => at % Math.ceil(found.length / 5) === 0).map((v) => Number(v.toPrecision(12)));
}

// Seconds since the start, at strides that people count in.
export function timeTicks([low, high], most = 6) {
  const strides = [0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
  const days = 86400 * Math.ceil((high - low) / 86400 / most); // the only one wide enough, of a long run
  return spread([low, high], days > 86400 ? [...strides, days] : strides, most);
}

// Times of day where the page is read, with the date at the first one and where a day begins. `origin` is
// second 0 of the axis, in seconds since 1970.
export function clockTicks([low, high], origin, most) {
  const local = origin - 60 * new Date(1000 * (origin + low)).getTimezoneOffset();
  const ticks = timeTicks([low + local, high + local], most).map((second) => second - local);
  let before = "";
  return ticks.map((second) => {
    const [date, time] = clockTexts(origin + second, high - low < 120);
    const isNew = date !== before;
    before = date;
    return [second, time === "00:00" ? date : isNew ? `${date}, ${time}` : time];
  });
}

export function clockTexts(seconds, hasSeconds) {
  const at = new Date(Math.round(1000 * seconds));
  const date = at.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  return [date, at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...(hasSeconds ? { second: "2-digit" } : {}) })];
}

export function timeText(seconds, digits = 3) {
  if (seconds < 60) return `${Number(seconds.toPrecision(digits))} s`;
  if (seconds < 3600) return `${Number((seconds / 60).toPrecision(digits))} min`;
  if (seconds < 172800) return `${Number((seconds / 3600).toPrecision(digits))} h`;
  return `${Number((seconds / 86400).toPrecision(digits))} days`;
}

// The first of these numbers of digits that tells neighbours apart.
export function distinctTexts(values, text, digits) {
  const all = digits.map((count) => values.map((value) => text(value, count)));
  return all.find((some) => new Set(some).size === some.length) ?? all[0];
}

// The widest stride's ticks that are not too many; where that leaves fewer than two, some of a finer
// one's: an axis with a single label tells no distance.
function spread([low, high], strides, most) {
  const at = strides.findIndex((size) => (high - low) / size <= most);
  const of = (size) => between(Math.ceil(low / size) * size, high, size);
  const found = of(strides[at]);
  if (found.length >= 2 || at === 0) return found;
  const finer = of(strides[at - 1]);
  return finer.filter((_, n) => n % Math.ceil(finer.length / Math.max(2, most)) === 0);
}

function between(first, last, stride) {
  const found = [];
  for (let at = 0; first + at * stride <= last + 1e-9 && at < 64; at++) found.push(first + at * stride);
  return found;
}
