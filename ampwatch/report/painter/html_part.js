// A piece of page that the server wrote, with what its reader may do: copy, fold, search, go on.
// The server escapes every name in it (said); Streamlit's own st.html would drop its SVG.

import { copied } from "./copying.js";
import { make } from "./elements.js";
import { light, onLight } from "./lighting.js";

const PAUSE_MS = 400; // a pause in typing after which the server hears of it

export class HtmlPart {
  constructor(place) {
    this.place = make("div", "aw-html");
    this.body = make("div");
    this.place.append(this.body);
    place.append(this.place);
    this.place.addEventListener("click", (event) => this.click(event));
    this.place.addEventListener("keydown", (event) => {
      const isPress = event.key === "Enter" || event.key === " ";
      if (!isPress || !event.target.matches('[role="button"][data-go]')) return;
      event.preventDefault(); // a space would scroll the page, and a summary would fold
      this.ask("go", event.target.dataset.go);
    });
    this.unlight = onLight((name) => this.lit(name));
    for (const [on, off] of [["pointerover", "pointerout"], ["focusin", "focusout"]]) {
      this.place.addEventListener(on, ({ target }) => this.point(target));
      this.place.addEventListener(off, ({ relatedTarget }) => this.point(relatedTarget));
    }
  }

  // What did not change is left alone, so that a selection and what was unfolded stay.
  show({ html, search, found }) {
    if (search && !this.search) this.addSearch(search);
    if (search) this.setSearch(found);
    if (html === this.html) return;
    this.html = html;
    const open = new Map([...this.body.querySelectorAll("details[data-key]")].map((one) => [one.dataset.key, one.open]));
    const focused = this.focused();
    this.body.innerHTML = html;
    if (focused) this.body.querySelector(focused)?.focus();
    for (const one of this.body.querySelectorAll("details[data-key]")) {
      if (open.has(one.dataset.key)) one.open = open.get(one.dataset.key);
    }
    this.filter();
  }

  // Where the keyboard is, as what finds it again in what a live run has written since.
  focused() {
    const one = document.activeElement;
    if (!one || !this.body.contains(one)) return null;
    for (const name of ["data-key", "data-go", "data-copy", "aria-label"]) {
      if (one.hasAttribute(name)) return `${one.tagName}[${name}="${CSS.escape(one.getAttribute(name))}"]`;
    }
    return null;
  }

  click(event) {
    const copy = event.target.closest("[data-copy], [data-link]");
    const go = event.target.closest("[data-go]");
    const sort = event.target.closest("[data-sort]");
    if (sort) this.ask("sort", sort.dataset.sort);
    else if (copy) copied(copy, copy.dataset.copy ?? location.href);
    else if (go && !event.metaKey && !event.ctrlKey) {
      event.preventDefault(); // its link is for a new tab, and for who copies it
      this.ask("go", go.dataset.go);
    }
  }

  // What of a run is pointed at (`data-light`) is lit everywhere.
  point(element) {
    const name = element?.closest?.("[data-light]")?.dataset.light ?? null;
    if (name === this.pointed) return;
    this.pointed = name;
    light(name);
  }

  lit(name) {
    const marked = [...this.body.querySelectorAll("[data-light]")];
    for (const one of marked) one.classList.toggle("aw-lit", one.dataset.light === name);
    this.body.classList.toggle("aw-has-lit", marked.some((one) => one.dataset.light === name));
  }

  addSearch(words) {
    this.search = make("input", "aw-search");
    this.search.type = "search";
    this.search.placeholder = words;
    this.search.setAttribute("aria-label", words);
    this.search.addEventListener("input", () => {
      this.filter();
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.tell(), PAUSE_MS);
    });
    this.place.prepend(this.search);
  }

  // The server keeps it in the address.
  tell() {
    this.typing = null;
    this.found = this.search.value;
    this.report("find", this.found);
  }

  // What the address says, as at Back; what is just being typed is newer.
  setSearch(found) {
    if (found === this.found || this.typing) return;
    this.found = found;
    this.search.value = found;
    this.filter();
  }

  filter() {
    const wanted = this.search?.value.trim().toLowerCase() ?? "";
    for (const row of this.body.querySelectorAll("[data-text]")) {
      row.hidden = !row.dataset.text.toLowerCase().includes(wanted);
    }
  }

  close() {
    this.unlight();
    this.place.remove();
  }
}
