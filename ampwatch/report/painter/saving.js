// The chart as a file: its numbers as CSV, its picture as SVG or PNG, as they are shown.

import { make } from "./elements.js";
import { shownLines } from "./view.js";

const LOOKS = ["fill", "stroke", "opacity", "stroke-width", "stroke-dasharray", "font-size", "font-weight", "font-family", "text-anchor", "paint-order"];
const DENSITY = 2; // pixels of a PNG for one of the screen
const KEPT_MS = 60000; // that a browser may take to save a file

export const save = async (kind, scene, plot) => {
  const texts = { CSV: () => new Blob([csvOf(scene)], { type: "text/csv" }), SVG: () => svgFile(plot), PNG: () => pngFile(plot) };
  const link = make("a");
  link.href = URL.createObjectURL(await texts[kind]());
  link.download = `${nameOf(scene.header.run)}-chart.${kind.toLowerCase()}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), KEPT_MS);
};

function nameOf(run) {
  const name = run.split(/[\\/]/).pop().replace(/[^\p{L}\p{N}._-]+/gu, "-");
  return name.slice(0, 80) || "run";
}

// A row a drawn point: the line's name, its step, where it lies on the axis, its value, and what was made
// smooth of it.
export function csvOf({ header, lines, span, view, places, axis }) {
  const rows = [["line", header.unit, ...(axis ? [axis.label] : []), "value", ...(view.smooth ? ["smoothed"] : [])]];
  for (const panel of header.panels) {
    for (const { key, label } of shownLines(panel, view)) {
      const { x, y, smooth } = lines[key];
      let pass = 0;
      for (let at = 0; at < x.length; at++) {
        if (at && x[at] < x[at - 1]) pass++;
        if (x[at] < span[0] || x[at] > span[1] || Number.isNaN(y[at])) continue;
        const value = panel.kind === "power" ? 2 ** y[at] : y[at];
        const made = view.smooth ? [smooth ? short(smooth[at]) : ""] : [];
        rows.push([label, x[at], ...(axis ? [short(places.at(x[at], pass))] : []), short(value), ...made]);
      }
    }
  }
  return rows.map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

const short = (value) => Number(value.toPrecision(7)); // they came with no more digits

// A table's program takes a text that begins so for a formula.
function cell(value) {
  if (typeof value !== "string") return value;
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function svgText(plot) {
  const drawn = plot.querySelector("svg");
  const copy = drawn.cloneNode(true);
  const [from, to] = [drawn, copy].map((one) => [one, ...one.querySelectorAll("*")]);
  from.forEach((element, at) => inline(element, to[at]));
  const ground = document.createElementNS(copy.namespaceURI, "rect");
  for (const [name, value] of Object.entries({ width: "100%", height: "100%", fill: groundOf(plot) })) ground.setAttribute(name, value);
  copy.prepend(ground);
  return new XMLSerializer().serializeToString(copy);
}

// Colours are variables of the page: in a file of its own the picture needs what they stand for.
function inline(element, copy) {
  const style = getComputedStyle(element);
  copy.removeAttribute("style");
  for (const name of LOOKS) {
    const value = style.getPropertyValue(name);
    if (value) copy.setAttribute(name, value);
  }
}

function groundOf(plot) {
  const probe = make("i");
  probe.style.color = "var(--aw-page)";
  plot.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

function svgFile(plot) {
  return new Blob([svgText(plot)], { type: "image/svg+xml" });
}

async function pngFile(plot) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(plot))}`;
  await image.decode();
  const canvas = make("canvas");
  const { width, height } = plot.drawn;
  Object.assign(canvas, { width: DENSITY * width, height: DENSITY * height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
