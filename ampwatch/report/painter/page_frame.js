// What surrounds the pages: the sidebar on a phone, a log that is dropped, the list of keys.

import { make } from "./elements.js";

// --- the sidebar of a phone covers the page, so it goes once something was chosen -----------------

const PHONE = matchMedia("(max-width: 768px)"); // as wide as Streamlit lays the sidebar over the page
const SIDEBAR = '[data-testid="stSidebar"]';

function closeSidebar() {
  const sidebar = document.querySelector(SIDEBAR);
  if (!sidebar || sidebar.getBoundingClientRect().right <= 0) return; // closed: it lies beside the window
  sidebar.querySelector('[data-testid="stSidebarCollapseButton"] button')?.click();
}

window.addEventListener("click", ({ target }) => {
  if (PHONE.matches && target.closest?.(`${SIDEBAR} a, .aw-switcher-panel a`)) setTimeout(closeSidebar);
});

if (PHONE.matches) closeSidebar(); // Streamlit keeps it as it was left, also for the next visit

// --- a log dropped anywhere ---------------------------------------------------------------------

const FIELD = '.st-key-log-upload input[type="file"]';

window.addEventListener("click", ({ target }) => {
  if (target.closest?.("[data-file]")) document.querySelector(FIELD)?.click();
});

function carriesFile({ dataTransfer }) {
  return Boolean(document.querySelector(FIELD) && dataTransfer?.types.includes("Files"));
}

function setDropping(isOver) {
  document.documentElement.classList.toggle("aw-dropping", isOver);
}

window.addEventListener("dragover", (event) => {
  if (!carriesFile(event)) return;
  event.preventDefault();
  setDropping(true);
});
window.addEventListener("dragleave", ({ relatedTarget }) => relatedTarget ?? setDropping(false));
window.addEventListener("drop", (event) => {
  setDropping(false);
  if (!carriesFile(event)) return;
  event.preventDefault();
  const field = document.querySelector(FIELD);
  field.files = event.dataTransfer.files;
  field.dispatchEvent(new Event("change", { bubbles: true }));
});

// --- the list of keys -----------------------------------------------------------------------------

const KEYS = [
  ["?", "this list"],
  ["r", "choose a run"],
  ["/", "search on this page"],
  ["← → + −", "move and zoom the chart that has the focus"],
  ["Home, End, Enter", "first, last step of the chart; pick it"],
  ["Esc", "the whole run again; close what is open"],
];

let keys = null;

function showKeys() {
  if (!keys) {
    const rows = KEYS.map(([key, words]) => [make("dt", "", make("kbd", "", key)), make("dd", "", words)]);
    keys = make("dialog", "aw-dialog aw-keys", make("h2", "", "Keys"), make("dl", "", ...rows.flat()));
    keys.addEventListener("click", () => keys.close());
  }
  document.querySelector(".stApp").append(keys); // where the palette is
  if (!keys.open) keys.showModal();
}

const ON_KEY = {
  "?": showKeys,
  "/": () => document.querySelector(".stMain .aw-search")?.focus(),
  r: () => document.querySelector(".aw-switcher")?.click(),
};

window.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, textarea, select, [contenteditable], [role=dialog], dialog");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || !ON_KEY[event.key]) return;
  event.preventDefault();
  event.stopImmediatePropagation(); // Streamlit has an "r" of its own
  ON_KEY[event.key]();
}, { capture: true });
