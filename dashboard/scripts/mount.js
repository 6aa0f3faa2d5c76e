// Give each place on the page its own live object, and pass on what comes for it.

import { plotly } from "./bundle.js";
import { Chart } from "./chart.js";
import { Heatmap } from "./heatmap.js";
import { Html } from "./html.js";
import { Windows } from "./windows.js";
import { unpack } from "./wire.js";

// Mounted before all else: plotly's script, the page's largest, loads while the server reads the run.
class Warm {
  constructor(_, root) {
    plotly(root);
  }
  show() {}
  close() {}
}

const KINDS = { chart: Chart, heatmap: Heatmap, html: Html, warm: Warm, windows: Windows };
const mounted = new WeakMap();

// Called by Streamlit again for every message; returns what it calls when the place is gone.
export function mount(component, root) {
  const { header, arrays } = unpack(component.data);
  const place = component.parentElement;
  let object = mounted.get(place);
  if (!object) {
    object = new KINDS[header.component](place, root);
    mounted.set(place, object);
  }
  object.report = component.setStateValue;
  object.ask = component.setTriggerValue;
  object.show(header, arrays);
  return () => {
    mounted.delete(place);
    object.close();
  };
}
