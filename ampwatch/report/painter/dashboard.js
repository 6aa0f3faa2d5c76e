// The dashboard: give each place on the page its own object, pass on what comes for it, and send what its
// reader does to the server.

import { Chart } from "./chart.js";
import { Heatmap } from "./heatmap.js";
import { HtmlPart, RunsTable } from "./html_part.js";
import { LayerViews } from "./layer_views.js";
import { unpack } from "./message.js";
import "./page_frame.js";
import { RunSwitcher } from "./run_switcher.js";
import { heard, ServerWatch } from "./server_watch.js";

const KINDS = {
  chart: Chart,
  heatmap: Heatmap,
  html: HtmlPart,
  losses: LayerViews,
  runs: RunsTable,
  server: ServerWatch,
  switcher: RunSwitcher,
  windows: LayerViews,
};
const IS_HTML = new Set(["html", "losses", "runs", "switcher", "windows"]);
const CONFIRMED_BYTES = 8;
const mounted = new WeakMap();

// Called by Streamlit again for every message; returns what it calls when the place is gone.
export default function mount(component) {
  const { from, count } = confirmed(component.data);
  const { header, arrays } = unpack(component.data.subarray(CONFIRMED_BYTES));
  const place = component.parentElement;
  let object = mounted.get(place);
  if (!object) {
    object = new KINDS[header.component](place);
    object.acts = new Acts();
    object.ask = (name, value) => object.acts.add(name, value);
    mounted.set(place, object);
  }
  object.report = component.setStateValue;
  object.acts.trigger = component.setTriggerValue;
  object.acts.confirm(from, count);
  object.differs = differs;
  if (IS_HTML.has(header.component)) onceReleased(place, () => object.show(header, arrays));
  else object.show(header, arrays);
  heard();
  return () => setTimeout(() => close(place, object));
}

// What browser_component.py writes before the message: the last act that the server has done.
function confirmed(bytes) {
  const numbers = new DataView(bytes.buffer, bytes.byteOffset, CONFIRMED_BYTES);
  return { from: numbers.getUint32(0, true), count: numbers.getUint32(4, true) };
}

// Streamlit calls back when the place is gone, but also when a message comes before the one before it
// was taken in: then the place is still there, and what it shows stays.
function close(place, object) {
  if (place.isConnected) return;
  mounted.delete(place);
  object.acts.close();
  object.close();
}

// Whether the address says anything else of these: a message that was made before it changed would take
// the reader back.
function differs(says) {
  const query = new URLSearchParams(location.search);
  return Object.entries(says).some(([name, text]) => query.get(name) !== text);
}

// --- what a reader does -------------------------------------------------------------------------

// What a reader does in one part of the page, on its way to the server. Of clicks that wait Streamlit
// hands on only the newest, and it drops those whose part of the page is just being made anew. So they
// are numbered, and sent together until the server has confirmed them.

const AGAIN_MS = 1500;

class Acts {
  constructor() {
    this.from = Math.floor(Math.random() * 2 ** 32); // numbers begin anew with each part of a page
    this.count = 0;
    this.sent = 0;
    this.waiting = [];
  }

  add(name, value) {
    this.waiting.push([++this.count, name, value ?? null]);
    this.send();
  }

  send() {
    clearTimeout(this.timer);
    this.trigger("acts", { from: this.from, acts: this.waiting, sent: ++this.sent });
    this.timer = setTimeout(() => this.send(), AGAIN_MS);
  }

  // The server has done all up to this number.
  confirm(from, count) {
    if (from !== this.from) return;
    this.waiting = this.waiting.filter(([number]) => number > count);
    if (!this.waiting.length) clearTimeout(this.timer);
  }

  close() {
    clearTimeout(this.timer);
  }
}

// --- presses ------------------------------------------------------------------------------------

// While a button of the mouse or a finger is down, the HTML under it stays as it is: an element that is
// replaced before it is released never hears of the click.

const MOST_MS = 2000; // as long as a press is waited for: the browser does not tell all releases

const waiting = new Map(); // place: what draws there
let timer = null;

window.addEventListener("pointerdown", () => {
  clearTimeout(timer);
  timer = setTimeout(release, MOST_MS);
}, { capture: true });
for (const end of ["pointerup", "pointercancel"]) {
  // The click comes right after the release.
  window.addEventListener(end, () => {
    clearTimeout(timer);
    timer = setTimeout(release);
  }, { capture: true });
}

// Draw in this place, now or once nothing is pressed; the latest of what waits for a place is drawn.
function onceReleased(place, draw) {
  if (timer === null) draw();
  else waiting.set(place, draw);
}

function release() {
  timer = null;
  const draws = [...waiting.values()];
  waiting.clear();
  for (const draw of draws) draw();
}

// --- pages --------------------------------------------------------------------------------------

// One press of Back for one switch of pages. Streamlit writes two entries when the server switches:
// the new query on the old page, then the new page. And where a link was pressed before the page had
// heard of a choice, the server tells the new page of it. The second takes the place of the first.

let pushed = null; // what the last entry changed, "query" or "page", and its reader did nothing since

const pushEntry = history.pushState.bind(history);
history.pushState = (state, title, url) => {
  const to = new URL(url ?? location.href, location.href);
  const change = to.pathname === location.pathname ? "query" : "page";
  const isSwitched = pushed === "query" && change === "page" && to.search === location.search;
  if (isSwitched || (pushed === "page" && change === "query")) history.replaceState(state, title, url);
  else pushEntry(state, title, url);
  pushed = change;
};
for (const input of ["pointerdown", "keydown", "wheel", "popstate"]) { // who acts or goes back begins anew
  window.addEventListener(input, () => (pushed = null), { capture: true, passive: true });
}
