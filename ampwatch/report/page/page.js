// Draws the figure in the colours of the reader's theme; on paper in the light ones, at its width.
(() => {
  const place = document.getElementById("charts");
  if (!place) return;
  const palettes = JSON.parse(document.getElementById("palette").textContent);
  const text = document.getElementById("figure").textContent;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const paper = window.matchMedia("print");
  const narrow = window.matchMedia("screen and (max-width: 700px)");
  const PAPER_WIDTH = 690; // pixels that fit an A4 page
  const PAPER_HEIGHT = 0.8; // of the screen's: so that the letter and a few charts share a page

  function draw() {
    const palette = palettes[dark.matches && !paper.matches ? "dark" : "light"];
    const { data, layout, short } = JSON.parse(text.replace(/@(\w+)@/g, (all, name) => palette[name] ?? all));
    layout.width = paper.matches ? PAPER_WIDTH : undefined;
    if (paper.matches) layout.height *= PAPER_HEIGHT;
    place.style.height = `${layout.height}px`;
    // A title does not wrap: here it leaves out what "How to read this" says as well.
    if (narrow.matches) short.forEach((title, at) => { layout.annotations[at].text = title; });
    if (place.layout?.xaxis?.range && !paper.matches) layout.xaxis.range = place.layout.xaxis.range;
    const config = { displayModeBar: false, showTips: false, responsive: true };
    return Plotly.react(place, data, layout, config);
  }

  draw().then(() => place.setAttribute("data-drawn", "yes"));
  dark.addEventListener("change", draw);
  paper.addEventListener("change", draw);
  narrow.addEventListener("change", draw);
})();
