// A heat map's cells on a canvas: thousands of cells as elements would take seconds. Each value is a
// neutral shade; what is over a limit is red, what is not finite is as black as text, and what is 0 where
// only powers count is hatched.

import { isWorse } from "./layer_tree.js";

const SHADES = 64;
const PALEST = 0.1;
const BLUE = 0.4; // of the grey
const HATCH = 5; // pixels between two strokes
const FOOT = 4; // of a fold's cell, where something inside is 0

export class CellPainter {
  // `range` is that of the values or, where `isLog`, of their powers of ten; `limit` is the largest value
  // that is still no more than in health.
  constructor({ palette, range, isLog, isLow, limit }) {
    Object.assign(this, { palette, range, isLog, isLow, limit });
    const strong = mixed(palette.muted, palette.scale, BLUE);
    this.shades = Array.from({ length: SHADES }, (_, n) => mixed(palette.page, strong, PALEST + ((1 - PALEST) * n) / (SHADES - 1)));
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
      if (isWorse(values[column], value, this.isLow)) value = values[column];
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
    if (this.isLog && hasZero && !isZero) {
      this.stripe(pen, this.palette.page, left, top + height - FOOT - 1, width, FOOT + 1);
      this.stripe(pen, this.hatch, left, top + height - FOOT, width, FOOT);
    }
  }

  stripe(pen, style, left, top, width, height) {
    pen.fillStyle = style;
    pen.fillRect(left, top, width, height);
  }

  shade(value) {
    const [low, high] = this.range;
    if (this.limit !== null && value > this.limit) return this.palette.skip;
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
  return `#${one.map((part, n) => Math.round(part + share * (other[n] - part)).toString(16).padStart(2, "0")).join("")}`;
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

// The range of what has a place among the shades, up to the limit where there is one; null of nothing.
export function rangeOf(values, isLog, limit = null) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (!Number.isFinite(value) || (isLog && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return null;
  if (limit !== null) [low, high] = [0, limit];
  const [from, to] = isLog ? [Math.log10(low), Math.log10(high)] : [low, high];
  return [from, to > from ? to : from + 1];
}
