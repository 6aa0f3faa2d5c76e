// A piece of page that the server wrote, with what its reader may do: copy, fold, search, go on.
// The server escapes every name in it (said); Streamlit's own st.html would drop its SVG.

import { copied } from "./copying.js";
import { make } from "./elements.js";

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
  }

  // What did not change is left alone, so that a selection and what was unfolded stay.
  show({ html, search }) {
    if (search && !this.search) this.addSearch(search);
    if (html === this.html) return;
    this.html = html;
    const open = new Map([...this.body.querySelectorAll("details[data-key]")].map((one) => [one.dataset.key, one.open]));
    this.body.innerHTML = html;
    for (const one of this.body.querySelectorAll("details[data-key]")) {
      if (open.has(one.dataset.key)) one.open = open.get(one.dataset.key);
    }
    this.filter();
  }

  click(event) {
    const copy = event.target.closest("[data-copy], [data-link]");
    const go = event.target.closest("[data-go]");
    if (copy) copied(copy, copy.dataset.copy ?? location.href);
    else if (go && !event.metaKey && !event.ctrlKey) {
      event.preventDefault(); // its link is for a new tab, and for who copies it
      this.ask("go", go.dataset.go);
    }
  }

  addSearch(words) {
    this.search = make("input", "aw-search");
    this.search.type = "search";
    this.search.placeholder = words;
    this.search.setAttribute("aria-label", words);
    this.search.addEventListener("input", () => this.filter());
    this.place.prepend(this.search);
  }

  filter() {
    const wanted = this.search?.value.trim().toLowerCase() ?? "";
    for (const row of this.body.querySelectorAll("[data-text]")) {
      row.hidden = !row.dataset.text.toLowerCase().includes(wanted);
    }
  }

  close() {
    this.place.remove();
  }
}
