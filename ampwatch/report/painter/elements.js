// Elements of the page: making, copying, lighting. Text goes in as text: names of runs and layers are data.

// `inside` are texts and elements.
export function make(tag, className = "", ...inside) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...inside.filter(Boolean));
  return element;
}

// The head of a table whose columns have these names.
export function tableHead(...cells) {
  for (const cell of cells) cell.scope = "col";
  return make("thead", "", make("tr", "", ...cells));
}

// A small button beside a chart.
export function toolButton(words, act, title = "") {
  const button = make("button", "aw-tool-button", words);
  Object.assign(button, { type: "button" }, title ? { title } : {});
  button.addEventListener("click", act);
  return button;
}

// A "?" that opens an explanation over the page; it stays open while what is around it is drawn anew.
export function helpOf(label) {
  const words = make("div", "aw-help-words");
  const sign = make("summary", "", "?");
  sign.setAttribute("aria-label", label);
  const place = make("details", "aw-help", sign, words);
  place.addEventListener("keydown", ({ key }) => key === "Escape" && (place.open = false));
  place.addEventListener("focusout", ({ relatedTarget }) => place.contains(relatedTarget) || (place.open = false));
  return { place, says: (text) => (words.textContent = text) };
}

// A button that unfolds a list of tools. It closes by Escape or a press elsewhere.
export function foldedMenu(words, label, ...inside) {
  const summary = make("summary", "aw-tool-button", words);
  const list = make("div", "aw-menu-list", ...inside);
  const box = Object.assign(make("details", "aw-menu", summary, list), { list });
  Object.assign(summary, { title: label, ariaLabel: words.length > 1 ? `${words}: ${label}` : label });
  const close = ({ target }) => {
    if (!box.contains(target)) box.open = false;
  };
  box.addEventListener("toggle", () => window[box.open ? "addEventListener" : "removeEventListener"]("pointerdown", close, { capture: true }));
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !box.open) return;
    box.open = false;
    summary.focus();
    event.stopPropagation();
  });
  return box;
}

// A list of which one is chosen; `label` is for who hears the page, where nothing beside it says what it is.
export function makeSelect(label, choose) {
  const select = make("select");
  if (label) select.setAttribute("aria-label", label);
  select.addEventListener("change", () => choose(select.value));
  return select;
}

// A field to search in; `label` says what for.
export function searchField(placeholder, typed, label = placeholder) {
  const field = make("input", "aw-search");
  Object.assign(field, { type: "search", placeholder });
  field.setAttribute("aria-label", label);
  field.addEventListener("input", typed);
  return field;
}

export const optionsOf = (pairs) => pairs.map(([value, words]) => Object.assign(make("option", "", words), { value }));

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

// --- copying ------------------------------------------------------------------------------------

// Copying a text, and saying whether it worked.

const SAID_MS = 2500;

// Copies, and says on the button what came of it.
export function copied(button, text) {
  byClipboard(text).then((worked) => say(button, worked || bySelection(text)));
}

function say(button, worked) {
  const usual = (button.dataset.words ??= button.textContent);
  button.textContent = worked ? "copied" : "not copied: select the text and copy it";
  aloud().textContent = button.textContent;
  clearTimeout(Number(button.dataset.timer));
  button.dataset.timer = setTimeout(() => (button.textContent = usual), SAID_MS);
  button.focus();
}

// Where screen readers hear it: the button keeps its name.
function aloud() {
  let place = document.querySelector(".aw-aloud[role=status]");
  if (!place) {
    place = make("div", "aw-aloud");
    place.setAttribute("role", "status");
    document.body.append(place);
  }
  return place;
}

async function byClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // over plain HTTP there is no clipboard, and it can be forbidden
  }
}

function bySelection(text) {
  const field = make("textarea");
  field.value = text;
  field.style.cssText = "position:fixed;top:0;opacity:0";
  field.setAttribute("aria-hidden", "true");
  document.body.append(field);
  field.select();
  try {
    return document.execCommand("copy");
  } catch {
    return false;
  } finally {
    field.remove();
  }
}

// --- lighting -----------------------------------------------------------------------------------

// What stands for one run is lit together, in the chart, the tables and the sweep, wherever it is
// pointed at; the rest of it is pale.

const NAME = "aw-light";

// A run's name, or null where nothing is pointed at any more.
export function light(name) {
  window.dispatchEvent(new CustomEvent(NAME, { detail: name }));
}

// Calls back with what is lit; returns what ends it.
export function onLight(act) {
  const heard = ({ detail }) => act(detail);
  window.addEventListener(NAME, heard);
  return () => window.removeEventListener(NAME, heard);
}
