// The report: draw each message that the file holds, in the place where it stands.

import { Chart } from "./chart.js";
import { make } from "./elements.js";
import { LayerViews } from "./layer_views.js";
import { unpack } from "./message.js";

const KINDS = { chart: Chart, losses: LayerViews, windows: LayerViews };

for (const message of document.querySelectorAll("script.message")) {
  const place = make("div");
  message.before(place);
  const { header, arrays } = unpack(Uint8Array.from(atob(message.textContent), (one) => one.charCodeAt(0)));
  const object = new KINDS[header.component](place);
  object.report = () => {};
  object.ask = (kind, layer) => show(kind, layer);
  object.show(header, arrays);
}

// A click on a layer's bar goes to its numbers.
function show(kind, layer) {
  if (kind !== "layer") return;
  const row = [...document.querySelectorAll("[data-layer]")].find((one) => one.dataset.layer === layer);
  row?.scrollIntoView({ block: "center" });
}
