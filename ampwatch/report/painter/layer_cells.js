// A heat map's cells on a canvas: thousands of cells as elements would take seconds. Each value is a
// shade; what is 0 where only powers count is hatched, what is not finite is black with a line through.

const SHADES = 64;
const PALEST = 0.08;
const HATCH = 5; // pixels between two strokes
const FOOT = 4; // of a fold's cell, where something inside is 0

export class CellPainter {
  // `range` is that of the values or, where `isLog`, of their powers of ten.
  constructor({ palette, range, isLog, isLow }) {
    Object.assign(this, { palette, range, isLog, isLow });
    this.shades = Array.from({ length: SHADES }, (_, n) => mixed(palette.page, palette.skip, PALEST + ((1 - PALEST) * n) / (SHADES - 1)));
  }

  // `lefts` are the columns' edges in pixels; rows are `height` apart, the first begins at `top`.
  rows(canvas, rows, { lefts, height, top, step, cursor }) {
    const pen = this.sized(canvas, lefts);
    rows.forEach((row, n) => row.values && this.row(pen, row, lefts, top + n * height, height - 1));
    if (step !== null) {
      pen.fillStyle = this.palette.ink;
      pen.fillRect(step, 0, 1, canvas.clientHeight);
    }
    if (cursor) this.cursor(pen, lefts, top + cursor.row * height, height, cursor.column);
  }

  sized(canvas, lefts) {
    const density = window.devicePixelRatio || 1;
    canvas.width = Math.round(lefts[lefts.length - 1] * density);
    canvas.height = Math.round(canvas.clientHeight * density);
    const pen = canvas.getContext("2d");
    pen.scale(density, density);
    this.hatch ??= hatched(pen, this.palette.muted);
    return pen;
  }

  // Columns that share a pixel show the worst of them.
  row(pen, { values, zeros }, lefts, top, height) {
    let value = NaN;
    let hasZero = 0;
    for (let column = 0; column < values.length; column++) {
      const width = lefts[column + 1] - lefts[column];
      if (this.isWorse(values[column], value)) value = values[column];
      hasZero ||= zeros?.[column];
      if (!width) continue;
      if (value === value) this.cell(pen, value, hasZero, lefts[column], top, width, height);
      [value, hasZero] = [NaN, 0];
    }
  }

  cell(pen, value, hasZero, left, top, width, height) {
    const isZero = this.isLog && value === 0;
    const isOdd = !Number.isFinite(value);
    this.stripe(pen, isZero ? this.hatch : isOdd ? this.palette.ink : this.shade(value), left, top, width, height);
    if (isOdd) this.stripe(pen, this.palette.page, left, top + height / 2 - 0.75, width, 1.5);
    if (this.isLog && hasZero && !isZero) {
      this.stripe(pen, this.palette.page, left, top + height - FOOT - 1, width, FOOT + 1);
      this.stripe(pen, this.hatch, left, top + height - FOOT, width, FOOT);
    }
  }

  isWorse(one, other) {
    return other !== other ? one === one : this.isLow ? one < other : one > other;
  }

  stripe(pen, style, left, top, width, height) {
    pen.fillStyle = style;
    pen.fillRect(left, top, width, height);
  }

  shade(value) {
    const [low, high] = this.range;
    const share = ((this.isLog ? Math.log10(value) : value) - low) / (high - low);
    return this.shades[Math.round((SHADES - 1) * Math.min(1, Math.max(0, this.isLow ? 1 - share : share)))];
  }

  cursor(pen, lefts, top, height, column) {
    const [left, width] = [lefts[column], Math.max(3, lefts[column + 1] - lefts[column])];
    for (const [color, line] of [[this.palette.page, 4], [this.palette.scale, 2]]) {
      pen.strokeStyle = color;
      pen.lineWidth = line;
      pen.strokeRect(left + 1, top + 1, Math.max(1, width - 2), height - 3);
    }
  }
}

function mixed(from, to, share) {
  const [one, other] = [from, to].map((color) => color.match(/\w\w/g).map((pair) => parseInt(pair, 16)));
  return `rgb(${one.map((part, n) => Math.round(part + share * (other[n] - part))).join(",")})`;
}

function hatched(pen, color) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = HATCH;
  const inside = tile.getContext("2d");
  inside.strokeStyle = color;
  inside.lineWidth = 1.2;
  for (const shift of [-HATCH, 0, HATCH]) {
    inside.moveTo(shift, HATCH);
    inside.lineTo(shift + HATCH, 0);
  }
  inside.stroke();
  return pen.createPattern(tile, "repeat");
}

// The range of what has a place among the shades, which reaches to `least` at least; null of nothing.
export function rangeOf(values, isLog, least = null) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (!Number.isFinite(value) || (isLog && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return null;
  if (least !== null) [low, high] = [0, Math.max(high, least)];
  const [from, to] = isLog ? [Math.log10(low), Math.log10(high)] : [low, high];
  return [from, to > from ? to : from + 1];
}
