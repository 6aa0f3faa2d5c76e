// Around a chart: what it is drawn over and how smooth, the labels of its lines, and what is saved of it.

import { countText } from "./axis.js";
import { LEFT, RIGHT } from "./chart_drawing.js";
import { labelOf, legendsOf, nameOf, PLAIN, scaled, shownLines, soloed, toggled } from "./chart_view.js";
import { make, makeSelect, optionsOf, shortened, tone, toolButton } from "./elements.js";

const NARROW = 620; // less than this it is folded up

export class Toolbar {
  // Around the chart's `frame`.
  constructor(place, frame, chart) {
    this.chart = chart;
    this.tools = make("div", "aw-tools");
    this.fold = make("details", "aw-toolbar", make("summary", "", "Chart options"), this.tools);
    this.isNarrow = null;
    this.axis = makeSelect("", (axis) => chart.change({ axis: axis || null }));
    this.size = make("input");
    Object.assign(this.size, { type: "range", min: 0, step: 1 });
    this.size.addEventListener("input", () => chart.change({ smooth: this.sizes[this.size.value] }));
    this.sizeText = make("output", "aw-size");
    this.way = makeSelect("Way of smoothing", (way) => chart.change({ way }));
    this.way.append(...optionsOf([["mean", "exponential"], ["median", "running median"]]));
    this.axisBox = labelled("x axis", this.axis);
    this.tools.append(this.axisBox, labelled("Smooth", this.size, this.sizeText), this.way, ...this.switches(), this.saves());
    this.whole = toolButton("Whole run", () => chart.choose({ span: null }), "Show all steps again (or double-click a chart, or press Escape)");
    this.whole.classList.add("aw-whole");
    this.hidden = make("div", "aw-hidden-lines");
    place.append(this.fold, frame, this.hidden); // below: nothing moves under a hand that hides lines
    frame.append(this.whole);
  }

  switches() {
    const switches = [["band", "Min–max band", "Shade from the lowest to the highest value"], ["cut", "Cut outliers", "Let single values far out leave their panel; they are counted, and arrows show where"]];
    this.boxes = {};
    return switches.map(([name, text, title]) => {
      const box = make("input");
      box.type = "checkbox";
      box.addEventListener("change", () => this.chart.change({ [name]: box.checked }));
      this.boxes[name] = box;
      return Object.assign(make("label", "aw-tool", box, text), { title });
    });
  }

  saves() {
    const button = (kind) => toolButton(kind, () => save(kind, this.chart), `Save what is shown as ${kind}`);
    return make("span", "aw-tool aw-saves", "Save ", ...["CSV", "SVG", "PNG"].map(button));
  }

  show({ header, view, axis }, isWhole, width) {
    if (this.isNarrow !== width < NARROW) {
      this.isNarrow = width < NARROW;
      this.fold.classList.toggle("narrow", this.isNarrow);
      this.fold.open = !this.isNarrow;
    }
    this.whole.hidden = isWhole;
    this.showAxes(header, axis);
    this.showSize(header, view);
    this.way.hidden = !view.smooth;
    this.way.value = view.way;
    for (const [name, box] of Object.entries(this.boxes)) box.checked = view[name];
    this.showHidden(header, view);
  }

  showAxes({ axes, unit }, axis) {
    const said = JSON.stringify([axes, unit]);
    if (said !== this.axesKnown) {
      this.axesKnown = said;
      this.axis.replaceChildren(...optionsOf([["", unit === "step" ? "step" : "time"], ...axes.map(({ key, label }) => [key, label])]));
    }
    this.axisBox.hidden = !axes.length;
    this.axis.value = axis?.key ?? "";
  }

  showSize({ axis: [first, last], unit }, { smooth }) {
    this.sizes = sizesOf(last - first);
    const at = this.sizes.findLastIndex((size) => size <= smooth);
    Object.assign(this.size, { max: this.sizes.length - 1, value: at });
    this.sizeText.textContent = smooth ? `over ${countText(smooth)} ${unit}s` : "off";
    this.size.setAttribute("aria-valuetext", this.sizeText.textContent);
  }

  // Lines that are hidden are counted and named, wherever the reader looks.
  showHidden({ panels }, view) {
    const hiddenOf = (panel) => {
      const shown = new Set(shownLines(panel, view).map(({ key }) => key));
      return panel.lines.filter(({ key }) => !shown.has(key));
    };
    const names = [...new Map(panels.flatMap(hiddenOf).map((line) => [nameOf(line), labelOf(line)])).values()];
    const said = names.length ? `${countText(names.length)} hidden: ${names.join(", ")}` : "";
    if (said === this.hiddenKnown) return;
    this.hiddenKnown = said;
    this.hidden.hidden = !said;
    const { hidden, solo } = PLAIN;
    this.hidden.replaceChildren(make("bdi", "", said), toolButton("Show all", () => this.chart.change({ hidden, solo }), "Show all lines again"));
    this.hidden.title = said;
  }
}

// Off, then 2, 5, 10, 20 and so on, to half of the run.
function sizesOf(length) {
  const found = [0];
  for (let unit = 1; found[found.length - 1] < length / 4; unit *= 10) found.push(...[2, 5, 10].map((size) => size * unit));
  return found.filter((size) => size === 0 || size <= Math.max(2, length / 2));
}

function labelled(text, ...inside) {
  return make("label", "aw-tool", text, " ", ...inside);
}

// --- legends ------------------------------------------------------------------------------------

// Above each panel: the labels of its lines, to hide, show and single out, and the kind of its axis.

const LETTERS = 44; // of a label; all of it is said on hover
const DASHES = { solid: "solid", dash: "dashed", dot: "dotted" };

export class PanelLegends {
  constructor(place, chart) {
    this.place = make("div", "aw-panel-heads");
    place.append(this.place);
    this.chart = chart;
    this.known = null;
  }

  // The height of each panel's labels; made anew only where the panels have changed.
  show({ header: { panels }, view }, width) {
    const said = JSON.stringify(panels.map((panel) => panel.lines));
    const legends = legendsOf(panels);
    if (said !== this.known) {
      this.known = said;
      this.heads = panels.map((panel, number) => this.head(panel, legends[number]));
      this.place.replaceChildren(...this.heads.map(({ box }) => box));
      this.measured = null;
    }
    this.heads.forEach((head, number) => this.update(head, legends[number], view));
    if (this.measured !== width) {
      for (const { legend } of this.heads) legend.style.width = `${width - LEFT - RIGHT}px`;
      this.heights = this.heads.map(({ legend }) => legend.offsetHeight);
      this.measured = width;
    }
    return this.heights;
  }

  // Put them where their panels lie.
  put(panels) {
    panels.forEach(({ head, axis, canBeLog }, number) => {
      const { box, scale } = this.heads[number];
      box.style.top = `${head - 24}px`;
      scale.hidden = !canBeLog;
      scale.textContent = axis.type === "log" ? "log" : "linear";
      scale.setAttribute("aria-pressed", axis.type === "log");
    });
  }

  head(panel, labelled) {
    const scale = make("button", "aw-axis-kind");
    const [first] = panel.lines;
    const name = (first?.group ? panel.title[0][0] : first?.label) ?? "";
    scale.title = `Axis of ${name}: logarithmic or linear`;
    scale.setAttribute("aria-label", `Logarithmic axis of ${name}`);
    scale.addEventListener("click", () => {
      this.chart.change(scaled(this.chart.view, panel.lines[0].key, scale.textContent !== "log"));
    });
    const labels = labelled.lines.map((line) => this.label(labelled, line));
    const legend = make("div", "aw-legend", ...labels.map((label) => label.box));
    return { box: make("div", "aw-panel-head", scale, legend), scale, legend, labels };
  }

  label(panel, line) {
    const key = nameOf(line);
    const { chart } = this;
    const showAlone = () => chart.change(soloed(chart.view, panel, key));
    const swatch = make("i", "aw-swatch");
    swatch.style.borderTop = `2.5px ${DASHES[line.dash]} ${tone(line.color)}`;
    if (line.faint) swatch.style.opacity = 0.45;
    const button = make("button", "aw-series-name", swatch, make("bdi", "", shortened(line.label, LETTERS)));
    button.title = `${line.label}: click to hide or show, Shift and click to show it alone`;
    button.addEventListener("click", ({ shiftKey }) => (shiftKey ? showAlone() : chart.change(toggled(chart.view, panel, key))));
    const only = make("button", "aw-only", "only");
    only.title = `Show ${line.label} alone`;
    only.setAttribute("aria-label", only.title);
    only.addEventListener("click", showAlone);
    const box = make("span", "aw-series", button, only);
    for (const [on, off] of [["pointerenter", "pointerleave"], ["focusin", "focusout"]]) {
      box.addEventListener(on, () => chart.lightLabel(key));
      box.addEventListener(off, () => chart.lightLabel(null));
    }
    return { box, button, only, key };
  }

  update({ labels }, panel, view) {
    const shown = new Set(shownLines(panel, view).map(nameOf));
    for (const { box, button, only, key } of labels) {
      box.classList.toggle("off", !shown.has(key));
      button.setAttribute("aria-pressed", shown.has(key));
      only.setAttribute("aria-pressed", view.solo.includes(key));
    }
  }
}

// --- saving -------------------------------------------------------------------------------------

// The chart as a file: its numbers as CSV, its picture as SVG or PNG, as they are shown.

const LOOKS = ["fill", "stroke", "opacity", "stroke-width", "stroke-dasharray", "font-size", "font-weight", "font-family", "text-anchor", "paint-order"];
const DENSITY = 2; // pixels of a PNG for one of the screen
const KEPT_MS = 60000; // that a browser may take to save a file

async function save(kind, { scene, plot }) {
  const texts = { CSV: () => new Blob([csvOf(scene)], { type: "text/csv" }), SVG: () => svgFile(plot), PNG: () => pngFile(plot) };
  const link = make("a");
  link.href = URL.createObjectURL(await texts[kind]());
  link.download = `${fileNameOf(scene.header.run)}-chart.${kind.toLowerCase()}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), KEPT_MS);
}

function fileNameOf(run) {
  const name = run.split(/[\\/]/).pop().replace(/[^\p{L}\p{N}._-]+/gu, "-");
  return name.slice(0, 80) || "run";
}

// A row a drawn point: the line's name, its step, where it lies on the axis, its value, and what was made
// smooth of it.
function csvOf({ header, lines, span, view, places, axis }) {
  const rows = [["line", header.unit, ...(axis ? [axis.label] : []), "value", ...(view.smooth ? ["smoothed"] : [])]];
  for (const panel of header.panels) {
    for (const { key, label } of shownLines(panel, view)) {
      const { x, y, smooth } = lines[key];
      let pass = 0;
      for (let at = 0; at < x.length; at++) {
        if (at && x[at] < x[at - 1]) pass++;
        if (x[at] < span[0] || x[at] > span[1] || Number.isNaN(y[at])) continue;
        const value = panel.kind === "power" ? 2 ** y[at] : y[at];
        const smoothed = view.smooth ? [smooth ? short(smooth[at]) : ""] : [];
        rows.push([label, x[at], ...(axis ? [short(places.at(x[at], pass))] : []), short(value), ...smoothed]);
      }
    }
  }
  return rows.map((row) => `${row.map(csvCell).join(",")}\r\n`).join("");
}

const short = (value) => Number(value.toPrecision(7)); // they came with no more digits

// A table's program takes a text that begins so for a formula.
function csvCell(value) {
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
