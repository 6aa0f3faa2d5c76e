// Watches whether the dashboard's server answers, and says so when it does not.
//
// A page of a server that was killed or frozen would otherwise show its last values as new. Times
// are the server's own, and their differences the browser's monotonic clock: a browser whose clock
// is wrong shows the right ones.

import { copied, make } from "./elements.js";

const EVERY_MS = 1100; // a page that is told something each second need not ask
const PATIENCE_MS = 1700; // with the pause before it, silence is said within three seconds
const REST_AFTER_MS = 10000;
const HEALTH = new URL("../../health", import.meta.url);
const STREAMLITS_ADVICE = /Is Streamlit still running|Streamlit server is not responding/;
const SILENT = "aw-silent"; // the whole page's class while the server does not answer

let watch;

// Whatever the server sends shows that it is there.
export function heard() {
  watch?.heard();
}

export class ServerWatch {
  constructor() {
    watch ??= new Watch(); // one a page, whatever Streamlit does to the place it was mounted in
  }

  show({ command }) {
    Object.assign(watch, { command, report: this.report });
  }

  close() {}
}

class Watch {
  constructor() {
    this.command = "";
    this.server = null; // its time at the last answer, and when that was here
    this.heardAt = performance.now();
    this.refused = false;
    this.ages = new WeakMap();
    this.isResting = false;
    document.addEventListener("visibilitychange", () => {
      this.soon(0); // timers rest in a hidden tab
      this.restOrWake();
    });
    this.restOrWake();
    new MutationObserver(() => this.hideAdvice()).observe(document.body, { childList: true, subtree: true });
    this.soon(0);
    setInterval(() => this.count(), 1000);
  }

  heard() {
    this.heardAt = performance.now();
    if (this.server && !this.band && !this.asking) this.soon(EVERY_MS);
  }

  soon(after) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), after);
  }

  async ask() {
    if (this.asking) return;
    this.asking = true;
    const impatience = new AbortController();
    const timer = setTimeout(() => impatience.abort(), PATIENCE_MS);
    try {
      const answer = await fetch(HEALTH, { cache: "no-store", signal: impatience.signal });
      if (!answer.ok) throw new Error(answer.statusText);
      this.answered(Date.parse(answer.headers.get("Date")));
    } catch {
      this.refused ||= !impatience.signal.aborted;
      this.silent();
    } finally {
      clearTimeout(timer);
      this.asking = false;
      this.soon(EVERY_MS);
    }
  }

  answered(time) {
    this.heardAt = performance.now();
    this.server = { time: time || Date.now(), here: this.heardAt };
    if (!this.band) return;
    if (this.refused) location.reload(); // another process answers now, and knows nothing of this page
    this.band.remove();
    this.band = null;
    document.documentElement.classList.remove(SILENT);
  }

  silent() {
    if (this.band) return;
    const last = this.server ? this.server.time + this.heardAt - this.server.here : Date.now();
    const since = new Date(last).toTimeString().slice(0, 8);
    this.band = make("div", "aw-silence");
    this.band.setAttribute("role", "alert");
    this.band.dataset.reactAriaTopLayer = "true"; // a dialog that is open leaves it usable
    const copy = make("button", "aw-copy", "copy");
    copy.setAttribute("aria-label", "copy the command");
    copy.addEventListener("click", () => copied(copy, this.command));
    const words = make("span", "", `The dashboard's server does not answer since ${since}. What is below is of that time. Start it: `);
    this.band.append(words, make("code", "", this.command), copy);
    document.body.append(this.band);
    const root = document.documentElement;
    root.style.setProperty("--aw-silence", `${this.band.offsetHeight}px`);
    root.classList.add(SILENT);
    this.hideAdvice();
  }

  // Streamlit's own box advises to run a script that there is not, or asks about the internet.
  hideAdvice() {
    if (!this.band) return;
    for (const box of document.querySelectorAll('[data-testid="stDialog"]')) {
      if (STREAMLITS_ADVICE.test(box.textContent)) box.querySelector('button[aria-label="Close"]')?.click();
    }
  }

  // A tab that nobody sees need not be kept up to date: it says so to the server, and says when it is
  // looked at again. It waits first: who goes from tab to tab is back soon.
  restOrWake() {
    clearTimeout(this.resting);
    if (document.hidden) this.resting = setTimeout(() => this.tellRest(true), REST_AFTER_MS);
    else if (this.isResting) this.tellRest(false);
  }

  tellRest(isResting) {
    this.isResting = isResting;
    this.report?.("rests", isResting);
  }

  // Ages that the server wrote go on while it writes nothing new, as when "Follow live" is off.
  count() {
    for (const place of document.querySelectorAll(".aw-age")) {
      const { age, at } = place.dataset;
      const known = this.ages.get(place);
      if (known?.at !== at) this.ages.set(place, { at, here: performance.now() });
      else if (!this.band) place.textContent = ageText(Number(age) + (performance.now() - known.here) / 1000);
    }
  }
}

// As html_text.py writes it.
function ageText(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  for (const [least, size, unit] of [[86400 * 2, 86400, "days"], [3600 * 2, 3600, "h"], [120, 60, "min"]]) {
    if (seconds >= least) return `${Math.round(seconds / size)} ${unit}`;
  }
  return `${Math.round(seconds)} s`;
}
