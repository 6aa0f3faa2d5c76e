// The dashboard: give each place on the page its own object, and pass on what comes for it.

import { Chart } from "./chart.js";
import { Heatmap } from "./heatmap.js";
import { HtmlPart } from "./html_part.js";
import { LayerViews } from "./layer_views.js";
import { unpack } from "./message.js";
import { oneEntryForASwitch } from "./page_switches.js";
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
const mounted = new WeakMap();

oneEntryForASwitch();

// Called by Streamlit again for every message; returns what it calls when the place is gone.
export function mount(component) {
  const { header, arrays } = unpack(component.data);
  const place = component.parentElement;
  let object = mounted.get(place);
  if (!object) {
    object = new KINDS[header.component](place);
    mounted.set(place, object);
  }
  object.report = component.setStateValue;
  object.ask = component.setTriggerValue;
  object.isLate = isLate;
  object.differs = differs;
  object.show(header, arrays);
  heard();
  return () => setTimeout(() => close(place, object));
}

// Streamlit calls back when the place is gone, but also when a message comes before the one before it
// was taken in: then the place is still there, and what it shows stays.
function close(place, object) {
  if (place.isConnected) return;
  mounted.delete(place);
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
