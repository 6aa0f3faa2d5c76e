// Elements of the page. Text goes in as text: names of runs and layers are data.

export function make(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

// A colour of the palette; it follows the light or dark theme.
export function tone(name) {
  return `var(--aw-${name})`;
}

// A layer's name, shortened in the middle: its ends tell layers apart.
export function shortened(name, most) {
  if (name.length <= most) return name;
  const tail = Math.floor(((most - 1) * 2) / 3);
  return `${name.slice(0, most - 1 - tail)}…${name.slice(-tail)}`;
}

let pen = null;

// How wide a text is on the page, in pixels.
export function widthOf(text, size, weight, family) {
  pen ??= document.createElement("canvas").getContext("2d");
  pen.font = `${weight} ${size}px ${family}`;
  return pen.measureText(text).width;
}
