// The sidebar's run: its name, which opens the list of runs to choose from, and whether it is followed live.
// The server searches, so a hundred thousand runs are as quick as ten.

import { make, searchField } from "./elements.js";

const TYPING_MS = 200; // after the last letter the server is asked
const BESIDE = 8; // pixels that the list keeps from the window's edges

export class RunSwitcher {
  constructor(place) {
    this.head = make("button", "aw-switcher");
    Object.assign(this.head, { type: "button", ariaHasPopup: "dialog", ariaExpanded: "false" });
    this.search = searchField("Find a run", () => this.typed());
    this.rows = make("div", "aw-switcher-rows");
    this.more = make("p", "aw-muted");
    this.panel = make("div", "aw-switcher-panel", this.search, this.rows, this.more);
    Object.assign(this.panel, { popover: "auto", role: "dialog", ariaLabel: "Choose a run" });
    this.live = make("span");
    this.follow = make("button", "aw-follow", "Follow live");
    Object.assign(this.follow, { type: "button", role: "switch" });
    this.state = make("div", "aw-live-row", this.live, this.follow);
    this.place = make("div", "aw-html aw-run-choice", this.head, this.state, this.panel);
    place.append(this.place);
    this.head.popoverTargetElement = this.panel;
    this.panel.addEventListener("toggle", ({ newState }) => this.toggled(newState === "open"));
    this.panel.addEventListener("keydown", (event) => this.pressed(event));
    this.panel.addEventListener("click", (event) => this.clicked(event));
    this.follow.addEventListener("click", () => this.setFollow(this.follow.ariaChecked !== "true"));
  }

  show({ head, title, rows, more, live, follow }) {
    this.write(this.head, head);
    this.head.title = title;
    this.write(this.rows, rows);
    this.more.textContent = more;
    this.more.hidden = !more;
    this.write(this.live, live);
    this.state.hidden = !live;
    this.follow.ariaChecked = String(follow);
  }

  // What did not change is left alone, so that the focus stays.
  write(part, html) {
    if (part.written === html) return;
    part.written = html;
    const key = part.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    part.innerHTML = html;
    if (key) part.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
  }

  toggled(isOpen) {
    this.head.ariaExpanded = String(isOpen);
    this.ask("open", isOpen);
    if (!isOpen) return this.forget();
    const { left, bottom, width } = this.head.getBoundingClientRect();
    const room = innerWidth - 2 * BESIDE;
    Object.assign(this.panel.style, {
      left: `${Math.max(BESIDE, Math.min(left, innerWidth - BESIDE - Math.min(room, 352)))}px`,
      top: `${bottom + 4}px`,
      width: `${Math.min(room, Math.max(width, 352))}px`,
      maxHeight: `${innerHeight - bottom - 2 * BESIDE}px`,
    });
    this.search.focus();
  }

  forget() {
    clearTimeout(this.typing);
    if (!this.search.value) return;
    this.search.value = "";
    this.ask("find", "");
  }

  typed() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.ask("find", this.search.value), TYPING_MS);
  }

  pressed(event) {
    const links = [...this.rows.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: links.length - 1 }[event.key];
    const isInField = document.activeElement === this.search;
    if (event.key === "Enter" && isInField) links[0]?.click();
    if (to === undefined || (isInField && event.key !== "ArrowDown")) return;
    event.preventDefault();
    (links[to] ?? this.search).focus();
  }

  clicked(event) {
    const link = event.target.closest("[data-go]");
    if (!link || event.metaKey || event.ctrlKey) return; // its link is for a new tab
    event.preventDefault();
    this.ask("go", link.dataset.go);
    this.panel.hidePopover();
  }

  setFollow(follow) {
    this.follow.ariaChecked = String(follow);
    this.ask("follow", follow);
  }

  close() {
    clearTimeout(this.typing);
    this.place.remove();
  }
}
