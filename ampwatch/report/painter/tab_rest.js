// A tab that nobody sees need not be kept up to date: it says so to the server, and says when it is
// looked at again. It waits first: who goes from tab to tab is back soon.

const REST_AFTER_MS = 10000;

export class TabRest {
  constructor() {
    this.isResting = false;
    document.addEventListener("visibilitychange", () => this.changed());
    this.changed();
  }

  changed() {
    clearTimeout(this.timer);
    if (document.hidden) this.timer = setTimeout(() => this.say(true), REST_AFTER_MS);
    else if (this.isResting) this.say(false);
  }

  say(isResting) {
    this.isResting = isResting;
    this.report?.("rests", isResting);
  }
}
