// The dashboard: give each place on the page its own object, and pass on what comes for it.

import { Acts } from "./acts.js";
import { Chart } from "./chart.js";
import { Heatmap } from "./heatmap.js";
import { HtmlPart } from "./html_part.js";
import { LayerViews } from "./layer_views.js";
import { unpack } from "./message.js";
import { oneEntryForASwitch } from "./page_switches.js";
import { onceReleased } from "./presses.js";
import { RunsTable } from "./runs_table.js";
import { ServerWatch, heard } from "./server_watch.js";

const KINDS = {
  chart: Chart,
  heatmap: Heatmap,
  html: HtmlPart,
  losses: LayerViews,
  runs: RunsTable,
  server: ServerWatch,
  windows: LayerViews,
};
const IS_HTML = new Set(["html", "losses", "runs", "windows"]);
const CONFIRMED_BYTES = 8;
const mounted = new WeakMap();

oneEntryForASwitch();

// Called by Streamlit again for every message; returns what it calls when the place is gone.
export function mount(component) {
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
  object.isLate = isLate;
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

// A message that was made before the address changed would take the reader back.
function isLate({ span, picked, view }) {
  return differs({ span: span && span.join("-"), step: picked === null ? null : String(picked), view });
}

// Whether the address says anything else of these.
function differs(says) {
  const query = new URLSearchParams(location.search);
  return Object.entries(says).some(([name, text]) => query.get(name) !== text);
}
