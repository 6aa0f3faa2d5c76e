// Around a chart: what it is drawn over and how smooth, the labels of its lines, and what is saved of it.

import { countText } from "./axis.js";
import { LEFT, RIGHT } from "./chart_drawing.js";
import { labelOf, legendsOf, nameOf, PLAIN, scaled, shownLines, soloed, toggled } from "./chart_view.js";
import { copied, foldedMenu, make, makeSelect, optionsOf, shortened, tone, toolButton, widthOf } from "./elements.js";

const NARROW = 620; // less than this it is folded up
const FILES = ["CSV", "SVG", "PNG"];
const SHARES = { link: "Copy link", plotly: "Open in Plotly", report: "Download HTML report" };

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
    this.way = makeSelect("", (way) => chart.change({ way }));
    this.way.append(...optionsOf([["mean", "exponential"], ["median", "running median"]]));
    this.axisBox = labelled("x axis", this.axis);
    this.more = foldedMenu("⋯", "More options", ...this.switches(), labelled("Smooth by", this.way));
    this.share = foldedMenu("Share", "Save or share the chart");
    this.tools.append(this.axisBox, labelled("Smooth", this.size, this.sizeText), make("span", "aw-fill"), this.more, this.share);
    this.whole = toolButton("Whole run", () => chart.choose({ span: null }), "Show all steps again (or double-click a chart, or press Escape)");
    this.whole.classList.add("aw-whole");
    this.hidden = make("div", "aw-hidden-lines");
    this.place = place;
    place.append(this.fold, frame, this.hidden); // below: nothing moves under a hand that hides lines
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

  // Files of what is shown, and what this page offers beside them.
  showShares(shares) {
    const said = shares.join();
    if (said === this.sharesKnown) return;
    this.sharesKnown = said;
    const files = FILES.map((kind) => toolButton(`Save ${kind}`, () => save(kind, this.chart), `Save what is shown as ${kind}`));
    const others = shares.map((kind) => toolButton(SHARES[kind], ({ target }) => (kind === "link" ? copied(target, location.href) : this.chart.ask(kind))));
    this.share.list.replaceChildren(...files, ...others);
  }

  show({ header, view, axis }, isWhole, width) {
    if (this.isNarrow !== width < NARROW) {
      this.isNarrow = width < NARROW;
      this.fold.classList.toggle("narrow", this.isNarrow);
      this.fold.open = !this.isNarrow;
      if (this.isNarrow) this.place.append(this.whole); // beside the closed options
      else this.more.before(this.whole);
    }
    this.whole.hidden = isWhole;
    this.showAxes(header, axis);
    this.showSize(header, view);
    this.showShares(header.shares);
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
    panels.forEach(({ head, axis, hasChoice }, number) => {
      const { box, scale } = this.heads[number];
      box.style.top = `${head - 24}px`;
      scale.hidden = !hasChoice;
      for (const button of scale.children) button.setAttribute("aria-pressed", (button.textContent === "log") === (axis.type === "log"));
    });
  }

  head(panel, labelled) {
    const [first] = panel.lines;
    const name = (first?.group ? panel.title[0][0] : first?.label) ?? "";
    const kind = (words, title, isLog) => {
      const button = make("button", "", words);
      button.title = `${title} axis of ${name}`;
      button.setAttribute("aria-label", button.title);
      button.addEventListener("click", () => this.chart.change(scaled(this.chart.view, panel.lines[0].key, isLog)));
      return button;
    };
    const scale = make("span", "aw-axis-kind", kind("lin", "Linear", false), kind("log", "Logarithmic", true));
    scale.setAttribute("role", "group");
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

// The chart as a file: its numbers as CSV, its picture as SVG or PNG, as they are shown; above the picture
// whose it is, the verdict, and what the lines are.

const LOOKS = ["fill", "stroke", "opacity", "stroke-width", "stroke-dasharray", "font-size", "font-weight", "font-family", "text-anchor", "paint-order"];
const DENSITY = 2; // pixels of a PNG for one of the screen
const KEPT_MS = 60000; // that a browser may take to save a file

async function save(kind, { scene, plot }) {
  const texts = { CSV: () => new Blob([csvOf(scene)], { type: "text/csv" }), SVG: () => svgFile(plot, scene), PNG: () => pngFile(plot, scene) };
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
// smooth of it. What is not finite has rows too, and so have skipped steps: how many the tick stands for.
function csvOf({ header, lines, span, view, places, axis, rug }) {
  const rows = [["line", header.unit, ...(axis ? [axis.label] : []), "value", ...(view.smooth ? ["smoothed"] : [])]];
  const isInView = (step) => step >= span[0] && step <= span[1];
  const odds = Object.values(lines).flatMap(({ x, odd }) => [...x, ...odd.flatMap(({ first, last }) => [first, last])]);
  const steps = [...new Set(odds)].sort((a, b) => a - b); // that any line has: at others nothing was logged
  const put = (label, step, pass, value, smoothed = "") => {
    if (isInView(step)) rows.push([label, step, ...(axis ? [short(places.at(step, pass))] : []), value, ...(view.smooth ? [smoothed] : [])]);
  };
  for (const panel of header.panels) {
    for (const { key, label } of shownLines(panel, view)) {
      const { x, y, smooth, odd } = lines[key];
      let pass = 0;
      for (let at = 0; at < x.length; at++) {
        if (at && x[at] < x[at - 1]) pass++;
        if (!Number.isNaN(y[at])) put(label, x[at], pass, short(panel.kind === "power" ? 2 ** y[at] : y[at]), smooth ? short(smooth[at]) : "");
      }
      for (const { first, last, kind } of odd) {
        for (const step of steps) if (step >= first && step <= last) put(label, step, null, NOT_FINITE[kind]);
      }
    }
    if (panel.rug) for (const { step, count } of rug) put("skipped", step, null, count);
  }
  return rows.map((row) => `${row.map(csvCell).join(",")}\r\n`).join("");
}

const NOT_FINITE = ["nan", "inf", "-inf"]; // as thinning.py counts the kinds

const short = (value) => Number(value.toPrecision(7)); // they came with no more digits

// A table's program takes a text that begins so for a formula.
function csvCell(value) {
  if (typeof value !== "string") return value;
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

const HEAD_LINE = 20; // pixels, of what stands above the picture
const SWATCH = 18;

function svgText(plot, scene) {
  const drawn = plot.querySelector("svg");
  const head = headOf(scene, drawn.clientWidth, getComputedStyle(plot).fontFamily);
  drawn.append(head.group); // for as long as it is copied: its colours are those of the page
  const copy = drawn.cloneNode(true);
  const [from, to] = [drawn, copy].map((one) => [one, ...one.querySelectorAll("*")]);
  from.forEach((element, at) => inline(element, to[at]));
  head.group.remove();
  const { width, height } = plot.drawn;
  Object.entries({ height: height + head.height, viewBox: `0 ${-head.height} ${width} ${height + head.height}` }).forEach(([name, value]) => copy.setAttribute(name, value));
  copy.prepend(svgElement("rect", { y: -head.height, width: "100%", height: "100%", fill: groundOf(plot) }));
  return { text: new XMLSerializer().serializeToString(copy), width, height: height + head.height };
}

// The run's name, the verdict, and the labels of lines that share a panel, in rows above the picture.
function headOf({ header, view }, width, family) {
  const shown = new Set(header.panels.flatMap((panel) => shownLines(panel, view).map(nameOf)));
  const labels = legendsOf(header.panels).flatMap(({ lines }) => lines).filter((line) => shown.has(nameOf(line)));
  const group = svgElement("g", { class: "head" });
  let [x, row] = [LEFT, 0];
  const put = (text, style, size, at) => {
    const words = svgElement("text", { x: at, y: row * HEAD_LINE, "font-size": size, style });
    words.textContent = text;
    group.append(words);
  };
  for (const [text, style, size] of [[header.title, "fill:var(--aw-ink);font-weight:600", 14], [header.verdict, "fill:var(--aw-muted)", 12]]) {
    for (const part of text ? rowsOf(text, width - LEFT - RIGHT, size, family) : []) {
      row++;
      put(part, style, size, LEFT);
    }
  }
  if (labels.length) row++;
  for (const line of labels) {
    const room = SWATCH + 6 + widthOf(line.label, 12, 400, family) + 16;
    if (x > LEFT && x + room > width) [x, row] = [LEFT, row + 1];
    const y = row * HEAD_LINE - 4;
    group.append(svgElement("path", { d: `M${x},${y}h${SWATCH}`, style: `stroke:${tone(line.color)}`, "stroke-width": 2.5, "stroke-dasharray": { dash: "7 5", dot: "2 3" }[line.dash] ?? "none" }));
    put(line.label, "fill:var(--aw-muted)", 12, x + SWATCH + 6);
    x += room;
  }
  const height = row ? row * HEAD_LINE + 14 : 0;
  group.setAttribute("transform", `translate(0 ${-height})`);
  return { group, height };
}

// A text in as many rows as it needs.
function rowsOf(text, room, size, family) {
  const rows = [""];
  for (const word of text.split(" ")) {
    const longer = `${rows[rows.length - 1]} ${word}`.trim();
    if (widthOf(longer, size, 600, family) <= room) rows[rows.length - 1] = longer;
    else rows.push(word);
  }
  return rows.filter(Boolean);
}

function svgElement(name, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

// Colours are variables of the page: in a file of its own the picture needs what they stand for.
function inline(element, copy) {
  const style = getComputedStyle(element);
  copy.removeAttribute("style");
  for (const name of LOOKS) {
    const value = style.getPropertyValue(name);
    if (value) copy.setAttribute(name, value.replace(/color\(srgb ([\d.]+) ([\d.]+) ([\d.]+)\)/, (_, ...parts) => `rgb(${parts.map((part) => Math.round(255 * part)).join(", ")})`));
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

function svgFile(plot, scene) {
  return new Blob([svgText(plot, scene).text], { type: "image/svg+xml" });
}

async function pngFile(plot, scene) {
  const { text, width, height } = svgText(plot, scene);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = make("canvas");
  Object.assign(canvas, { width: DENSITY * width, height: DENSITY * height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
