// Parts of the page that the server wrote: HTML with what its reader may do (copy, fold, search, go on),
// and the table of runs. The server escapes every name in it (said); Streamlit's own st.html would drop
// its SVG.

import { copied, light, make, onLight, searchField } from "./elements.js";

const PAUSE_MS = 400; // a pause in typing after which the server hears of it

export class HtmlPart {
  constructor(place) {
    this.body = make("div");
    this.place = make("div", "aw-html", this.body);
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
    this.search = searchField(words, () => {
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

// --- the table of runs --------------------------------------------------------------------------

// The table of runs. The server sorts, filters and groups, and writes the rows that are in view; of a
// hundred thousand the others are empty height. Whatever a reader does is asked of the server.

const TYPING_MS = 250; // after the last letter the server is asked
const MARGIN = 15; // rows beyond those in view that should be there

export class RunsTable {
  constructor(place) {
    this.search = this.addSearch();
    this.bar = make("div", "aw-bar");
    this.chosen = make("div", "aw-bar aw-chosen-bar");
    this.head = make("thead");
    this.body = make("tbody");
    this.table = make("table", "aw-runs all", this.head, this.body);
    this.box = make("div", "aw-box", this.table);
    this.top = make("div", "aw-runs-top", this.search, this.bar);
    this.dialog = make("dialog", "aw-dialog");
    this.place = make("div", "aw-html aw-list", this.top, this.chosen, this.box, this.dialog);
    place.append(this.place);
    this.written = new Map();
    this.box.tabIndex = 0;
    this.box.setAttribute("role", "region");
    this.box.setAttribute("aria-label", "runs");
    this.scroller = place.closest('[data-testid="stMain"]') ?? document.scrollingElement;
    this.heard = () => this.scrolled();
    this.scroller.addEventListener("scroll", this.heard);
    // What was typed is told before anything that is done after it.
    for (const done of ["click", "change", "submit"])
      this.place.addEventListener(done, () => this.tellSearch(), true);
    this.place.addEventListener("click", (event) => this.click(event));
    this.place.addEventListener("change", (event) => this.changed(event));
    this.place.addEventListener("submit", (event) => this.submit(event));
    this.dialog.addEventListener("close", () => this.closed());
  }

  // What did not change is left alone, so that a selection and the focus stay.
  show(message) {
    this.told = message;
    this.wanted = null;
    if (document.activeElement !== this.search) this.search.value = message.find;
    this.write(this.bar, message.bar);
    this.write(this.chosen, message.chosen);
    this.write(this.head, message.head);
    this.table.setAttribute("aria-rowcount", message.total + 1);
    this.write(this.body, message.rows);
    this.setHeights();
    this.showDialog(message.dialog);
    if (this.begin && message.begin !== this.begin) this.scroller.scrollTop = 0; // other rows: from the top
    this.begin = message.begin;
    this.scrolled();
  }

  write(part, html) {
    if (this.written.get(part) === html) return;
    this.written.set(part, html);
    const key = part.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const open = [...part.querySelectorAll("details[open]")].map((one) => one.dataset.key);
    part.innerHTML = html;
    for (const one of part.querySelectorAll("details")) one.open = open.includes(one.dataset.key);
    if (key) part.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
  }

  // Rows are as high as the first of them; those that were not sent are space above and below.
  setHeights() {
    const { first, total } = this.told;
    const rows = this.body.querySelectorAll("tr:not(.aw-space)");
    if (!rows.length) return;
    const tops = rows[rows.length - 1].getBoundingClientRect().bottom - rows[0].getBoundingClientRect().top;
    this.rowHeight = tops / rows.length;
    this.space("aw-above", first, "prepend");
    this.space("aw-under", total - first - rows.length, "append");
  }

  space(name, rows, where) {
    let row = this.body.querySelector(`.${name}`);
    if (!row) {
      row = make("tr", `aw-space ${name}`);
      row.setAttribute("aria-hidden", "true");
      this.body[where](row);
    }
    row.style.height = `${rows * this.rowHeight}px`;
    row.hidden = rows <= 0;
  }

  scrolled() {
    if (!this.rowHeight || this.wanted !== null) return;
    const { first, total, count } = this.told;
    const above = this.scroller.getBoundingClientRect().top - this.body.getBoundingClientRect().top;
    const top = Math.max(0, Math.floor(above / this.rowHeight));
    const seen = Math.ceil(this.scroller.clientHeight / this.rowHeight);
    const lacksAbove = first > 0 && top - MARGIN < first;
    const lacksBelow = first + count < total && top + seen + MARGIN > first + count;
    if (!lacksAbove && !lacksBelow) return;
    if (this.lacked === top) return; // asked for already, and this is the answer
    this.lacked = top;
    this.wanted = top;
    this.ask("window", top);
  }

  click(event) {
    const control = event.target.closest("[data-act]");
    if (control?.matches("select, input")) return;
    const row = event.target.closest("[data-go]");
    if (event.metaKey || event.ctrlKey) return; // its link is for a new tab
    if (control) {
      event.preventDefault();
      this.ask(control.dataset.act, control.dataset.value ?? "");
    } else if (row && !event.target.closest("td:first-child, .aw-tags")) this.ask("go", row.dataset.go);
    else if (row && event.target.matches("td:first-child")) row.querySelector("input").click();
  }

  changed(event) {
    const { act, value } = event.target.dataset;
    if (act === "column") this.ask(act, value);
    else if (act === "pick") this.ask(event.target.checked ? "pick" : "unpick", value);
    else if (event.target.matches("select[data-act]")) this.ask(act, event.target.value);
  }

  submit(event) {
    event.preventDefault();
    const said = Object.fromEntries(new FormData(event.target, event.submitter));
    this.ask(event.submitter?.dataset.submit ?? "close", said);
  }

  showDialog(html) {
    this.write(this.dialog, html);
    if (html && !this.dialog.open) {
      this.opener = document.activeElement?.dataset.key;
      this.dialog.showModal();
    } else if (!html && this.dialog.open) {
      this.dialog.close();
      if (this.opener) this.place.querySelector(`[data-key="${CSS.escape(this.opener)}"]`)?.focus();
    }
  }

  closed() {
    if (this.told.dialog) this.ask("close", "");
  }

  addSearch() {
    const typed = () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.tellSearch(), TYPING_MS);
    };
    return searchField("Search: words, verdict:failing, tag:good, rate>0.01", typed, "Search runs, verdicts, findings");
  }

  tellSearch() {
    if (!this.typing) return;
    clearTimeout(this.typing);
    this.typing = null;
    this.ask("find", this.search.value);
  }

  close() {
    clearTimeout(this.typing);
    this.scroller.removeEventListener("scroll", this.heard);
    this.place.remove();
  }
}
