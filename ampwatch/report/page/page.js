// Draws the figure in the colours of the reader's theme; on paper in the light ones, at its width.
(() => {
  const place = document.getElementById("charts");
  if (!place) return;
  const palettes = JSON.parse(document.getElementById("palette").textContent);
  const text = document.getElementById("figure").textContent;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const paper = window.matchMedia("print");
  const PAPER_WIDTH = 690; // pixels that fit an A4 page

  function draw() {
    const palette = palettes[dark.matches && !paper.matches ? "dark" : "light"];
    const { data, layout } = JSON.parse(text.replace(/@(\w+)@/g, (all, name) => palette[name] ?? all));
    layout.width = paper.matches ? PAPER_WIDTH : undefined;
    if (place.layout?.xaxis?.range && !paper.matches) layout.xaxis.range = place.layout.xaxis.range;
    const config = { displayModeBar: false, showTips: false, responsive: true };
    return Plotly.react(place, data, layout, config);
  }

  draw().then(() => place.setAttribute("data-drawn", "yes"));
  dark.addEventListener("change", draw);
  paper.addEventListener("change", draw);
})();
