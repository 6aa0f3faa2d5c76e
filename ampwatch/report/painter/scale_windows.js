// Usable loss scales: one bar a layer, from the smallest to the largest scale at which it neither
// loses its gradients nor overflows; the scale as an upright line; what limits it in red.

import { make, shortened } from "./elements.js";
import { countText, powerText, powerTicks } from "./ticks.js";

const NAME_LETTERS = 24;
const EDGE = 8; // powers of two below 1 that are still worth room
const MEANING = "Left of its bar a layer loses small gradients, right of it they overflow. A bar that fades out to the left loses none, however small the scale.";
const LEVEL = " Established: the highest scale with which training worked for a while. A bar that ends at or below it caps the scale: the layer has begun to overflow at a scale that had worked.";

export class ScaleWindows {
  constructor(place) {
    this.place = make("div", "aw-windows");
    place.append(this.place);
  }

  show(header) {
    const range = rangeOf(header);
    const share = (value) => `${(100 * (Math.min(range[1], Math.max(range[0], value)) - range[0])) / (range[1] - range[0])}%`;
    const rows = header.rows.map((row) => this.row(row, share, row.layer === header.chosen));
    const lines = make("div", "aw-window-lines");
    const same = header.level === header.scale;
    if (header.level !== null && !same) {
      lines.append(upright(`established ${powerText(header.level)}`, header.level, share, "level"));
    }
    if (header.scale !== null) {
      const off = header.scale < range[0] ? "◂ " : ""; // far below all windows: at the edge, and said
      lines.append(upright(`${off}scale now ${powerText(header.scale)}`, header.scale, share, "now"));
    }
    const axis = make("div", "aw-window-axis");
    for (const tick of powerTicks(range)) {
      const label = make("span", "", powerText(tick));
      label.style.left = share(tick);
      axis.append(label);
    }
    const title = make("div", "aw-chart-title");
    title.append(make("b", "", "Usable loss scales by layer"), make("span", header.rows.some((row) => row.caps) ? "aw-caps" : "", header.marked));
    const at = header.step === null ? "at the end of the record" : `as of step ${header.step.toLocaleString("en-US")}`;
    const hidden = header.hidden ? ` ${countText(header.hidden)} layers with more room are not shown.` : "";
    const note = make("div", "aw-muted", `${MEANING}${header.level === null ? "" : LEVEL} Shown ${at}.${hidden}`);
    const chart = make("div", "aw-window-rows");
    const letters = Math.max(...header.rows.map((row) => Math.min(NAME_LETTERS, row.layer.length)));
    chart.style.setProperty("--aw-names", `${0.41 * letters + 1}rem`);
    chart.append(...rows, lines, axis);
    this.place.classList.toggle("calm", header.calm);
    this.place.replaceChildren(title, ...(header.sentence ? [make("p", "aw-view-sentence", header.sentence)] : []), chart, note);
  }

  row({ layer, low, high, caps, named }, share, isChosen) {
    const made = make("button", caps ? "aw-window caps" : named ? "aw-window named" : "aw-window");
    const empty = low !== null && low > high;
    const says = empty
      ? `no scale: its gradients are lost below ${powerText(Math.round(low))} and overflow above ${powerText(Math.round(high))}`
      : `${low === null ? "" : `from ${powerText(Math.ceil(low))} `}up to ${powerText(Math.floor(high))}`;
    made.title = `${layer}: ${says}`;
    if (isChosen) made.setAttribute("aria-current", "true");
    const track = make("span", "aw-window-track");
    const bar = make("span", low === null ? "aw-window-bar open" : empty ? "aw-window-bar empty" : "aw-window-bar");
    const [left, right] = empty ? [high, low] : [low ?? -Infinity, high];
    bar.style.left = share(left);
    bar.style.right = `calc(100% - ${share(right)})`;
    track.append(bar);
    made.append(make("span", "aw-window-name", shortened(layer, NAME_LETTERS)), track);
    made.addEventListener("click", () => this.ask("layer", layer));
    return made;
  }

  close() {
    this.place.remove();
  }
}

// What holds all windows; the scale, when it fell far below them, stands at the edge.
function rangeOf({ rows, level, scale }) {
  const lows = rows.map((row) => row.low).filter((low) => low !== null);
  const values = [...lows, ...rows.map((row) => row.high), ...(level === null ? [] : [level])];
  const low = Math.min(0, ...values, Math.max(scale ?? 0, -EDGE));
  return [Math.floor(low) - 1, Math.ceil(Math.max(16, ...values)) + 1];
}

function upright(text, value, share, kind) {
  const line = make("div", `aw-window-line ${kind}`);
  line.style.left = share(value);
  if (parseFloat(share(value)) > 50) line.classList.add("late"); // its words read to the left
  line.append(make("span", "", text));
  return line;
}
