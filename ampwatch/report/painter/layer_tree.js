// The layers as the model nests them. A prefix that is folded stands for all that is inside it, by the
// worst of each column; so of thousands of layers none is left out. And how a reader chose to see them.

import { coded, decoded } from "./chart_view.js";

const ROOM = 30; // rows that are there at first; a model that has more begins folded
const MOST_TOGETHER = 30; // neighbours; of more, so many are one fold:
const TOGETHER = 10;

// `layers` have `values`, row by row; `isLow` says whether low values are the worst.
export class LayerTree {
  constructor({ layers, values, columns, isLow }) {
    Object.assign(this, { layers, values, columns, isLow });
    this.root = { name: "", children: new Map(), at: -1 };
    layers.forEach((layer, at) => this.place(layer, at));
    this.root = this.closed(this.root, "");
    this.opened = this.roomy();
  }

  place(layer, at) {
    let node = this.root;
    let name = "";
    for (const part of layer === "(root)" ? [layer] : layer.split(".")) {
      name = name ? `${name}.${part}` : part;
      if (!node.children.has(part)) node.children.set(part, { name, children: new Map(), at: -1 });
      node = node.children.get(part);
    }
    node.at = at;
  }

  // A node with its worst values and its size; one that only leads to another is that other.
  closed(node, inside = "") {
    const only = [...node.children.values()];
    if (only.length === 1 && node.at < 0 && node.name) return this.closed(only[0], inside);
    const children = this.grouped(only.map((one) => this.closed(one, node.name)));
    const own = node.at < 0 ? null : this.values.subarray(node.at * this.columns, (node.at + 1) * this.columns);
    return this.withWorst({ name: node.name, label: node.name.slice(inside ? inside.length + 1 : 0), at: node.at, children, own });
  }

  withWorst(node) {
    const whole = { ...node, count: (node.own ? 1 : 0) + sum(node.children.map((one) => one.count)) };
    Object.assign(whole, node.children.length ? this.folded(whole) : { worst: node.own, zeros: null });
    whole.score = this.worstOf(whole.worst);
    return whole;
  }

  // Too many neighbours stand together by tens, hundreds, ..., as blocks.0 to 99: each is a fold.
  grouped(nodes) {
    if (nodes.length <= MOST_TOGETHER) return nodes;
    let size = TOGETHER;
    while (nodes.length / size > MOST_TOGETHER) size *= TOGETHER;
    const found = [];
    for (let at = 0; at < nodes.length; at += size) {
      const part = nodes.slice(at, at + size);
      const last = part[part.length - 1].label;
      const named = { name: `${part[0].name} to ${last}`, label: `${part[0].label} to ${last}` };
      found.push(part.length > 1 ? this.withWorst({ ...named, at: -1, children: this.grouped(part), own: null }) : part[0]);
    }
    return found;
  }

  folded({ own, children }) {
    const worst = new Float32Array(this.columns).fill(NaN);
    const zeros = new Uint8Array(this.columns); // whether any inside is 0
    const parts = [...(own ? [{ worst: own, zeros: null }] : []), ...children];
    for (const part of parts) {
      for (let column = 0; column < this.columns; column++) {
        const value = part.worst[column];
        if (this.isWorse(value, worst[column])) worst[column] = value;
        if (part.zeros?.[column] || value === 0) zeros[column] = 1;
      }
    }
    return { worst, zeros };
  }

  isWorse(one, other) {
    return isWorse(one, other, this.isLow);
  }

  // The worst of the values from one column to another.
  worstOf(values, first = 0, last = values.length - 1) {
    let worst = NaN;
    for (let at = first; at <= last; at++) if (this.isWorse(values[at], worst)) worst = values[at];
    return worst;
  }

  // The prefixes that are unfolded at first: level by level, while there is room; neighbours together,
  // but for those at the top, which may differ much.
  roomy() {
    const opened = new Set();
    let rows = this.root.children.length;
    const open = (nodes) => {
      const more = sum(nodes.map((node) => node.children.length));
      if (rows + more > ROOM) return [];
      rows += more;
      for (const { name } of nodes) opened.add(name);
      return nodes;
    };
    const folds = (nodes) => nodes.filter((node) => node.children.length);
    let level = folds(this.root.children).flatMap((node) => open([node]));
    while (level.length) level = level.flatMap((node) => open(folds(node.children)));
    return opened;
  }

  isOpen(node, { unfolded, turned }) {
    const isSo = unfolded === "all" || (unfolded === "some" && this.opened.has(node.name));
    return isSo !== turned.includes(node.name);
  }

  // The rows to show, from the top. `find` takes the place of folding: all layers whose names match.
  rows(view) {
    const wanted = view.find.trim().toLowerCase();
    return wanted ? this.matching(wanted, view) : this.unfoldedRows(this.root, view, 0, []);
  }

  unfoldedRows(node, view, depth, rows) {
    for (const child of this.ordered(node.children, view)) {
      const isOpen = child.children.length > 0 && this.isOpen(child, view);
      rows.push(rowOf(child, { depth, isOpen }));
      if (isOpen) this.unfoldedRows(child, view, depth + 1, rows);
    }
    return rows;
  }

  matching(wanted, view) {
    const found = [];
    const isWanted = (layer) => layer.toLowerCase().includes(wanted);
    this.layers.forEach((layer, at) => {
      if (!isWanted(layer)) return;
      const worst = this.values.subarray(at * this.columns, (at + 1) * this.columns);
      found.push({ ...leaf(layer, at, worst), score: view.isWorstFirst ? this.worstOf(worst) : 0 });
    });
    return this.ordered(found, view).map((node) => rowOf(node, { depth: 0, isOpen: false }));
  }

  ordered(nodes, { isWorstFirst }) {
    if (!isWorstFirst) return nodes;
    return [...nodes].sort((one, other) => (this.isWorse(one.score, other.score) ? -1 : this.isWorse(other.score, one.score) ? 1 : 0));
  }

  // The row of a layer that stands apart from the others, whatever is folded.
  rowNamed(layer) {
    const at = this.layers.indexOf(layer);
    const worst = at < 0 ? new Float32Array(this.columns).fill(NaN) : this.values.subarray(at * this.columns, (at + 1) * this.columns);
    return rowOf(leaf(layer, at, worst), { depth: 0, isOpen: false });
  }

  // The layer that a row's cell is of: of a fold the one that is worst there.
  layerAt(row, column) {
    if (!row.isFold) return row.name;
    let found = row.node.own ? row.name : null;
    let worst = row.node.own ? row.node.own[column] : NaN;
    const look = (node) => {
      if (node.own && this.isWorse(node.own[column], worst)) [found, worst] = [node.name, node.own[column]];
      node.children.forEach(look);
    };
    row.node.children.forEach(look);
    return found ?? row.name;
  }
}

// Any value is worse than none.
export const isWorse = (value, other, isLow) => (other !== other ? value === value : isLow ? value < other : value > other);

// A fold shows the worst of what is inside; an unfolded prefix only what it is itself.
function rowOf(node, { depth, isOpen }) {
  const isFold = node.children.length > 0 && !isOpen;
  return {
    node, depth, isOpen, isFold, label: node.label, name: node.name, hasInside: node.children.length > 0, isLayer: node.at >= 0,
    values: isFold ? node.worst : node.own, zeros: isFold ? node.zeros : null, count: node.count,
  };
}

const leaf = (name, at, worst) => ({ name, label: name, at, children: [], own: worst, worst, zeros: null, count: 1 });
const sum = (values) => values.reduce((all, one) => all + one, 0);

// --- how a reader sees them ---------------------------------------------------------------------

// How a reader chose to see the rows of layers, and the short text that the address keeps of it.

export const PLAIN = Object.freeze({
  isWorstFirst: false, // else in the model's order
  isTable: false, // else a heat map
  unfolded: "some", // at first: all, none, or as many as there is room for
  turned: [], // prefixes that are folded where the others of their kind are not, or the other way round
  find: "", // a part of the names
});

const LETTERS = { w: { isWorstFirst: true }, t: { isTable: true }, a: { unfolded: "all" }, n: { unfolded: "none" } };

// Signs that an address leaves as they are: parts stand between "~".
export function textOf(view) {
  const parts = Object.keys(LETTERS).filter((letter) => Object.entries(LETTERS[letter]).every(([name, value]) => view[name] === value));
  if (view.find) parts.push(`f-${coded(view.find)}`);
  return [...parts, ...view.turned.map((prefix) => `o-${coded(prefix)}`)].join("~");
}

// What is not understood is left out: an address may be old, or written by hand.
export function viewOf(text) {
  const view = { ...PLAIN };
  for (const part of (text ?? "").split("~")) {
    const rest = decoded(part.slice(2));
    if (part in LETTERS) Object.assign(view, LETTERS[part]);
    else if (part.startsWith("f-")) view.find = rest;
    else if (part.startsWith("o-") && rest) view.turned = [...view.turned, rest];
  }
  return view;
}

// The view with a prefix folded or unfolded.
export function turned(view, prefix) {
  const others = view.turned.filter((one) => one !== prefix);
  return { ...view, turned: others.length < view.turned.length ? others : [...others, prefix] };
}
