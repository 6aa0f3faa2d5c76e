// plotly.js, once for the page, from the copy that the plotly Python package ships.

let loading = null;

export function plotly(root) {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = new URL("../live.plotly/plotly.min.js", root);
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("plotly.min.js could not be loaded"));
    document.head.append(script);
  });
  return loading;
}
