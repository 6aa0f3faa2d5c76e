// What a reader does in one part of the page, on its way to the server. Of clicks that wait Streamlit
// hands on only the newest, and it drops those whose part of the page is just being made anew. So they
// are numbered, and sent together until the server has confirmed them.

const AGAIN_MS = 1500;

export class Acts {
  constructor() {
    this.from = Math.floor(Math.random() * 2 ** 32); // numbers begin anew with each part of a page
    this.count = 0;
    this.sent = 0;
    this.waiting = [];
  }

  add(name, value) {
    this.waiting.push([++this.count, name, value ?? null]);
    this.send();
  }

  send() {
    clearTimeout(this.timer);
    this.trigger("acts", { from: this.from, acts: this.waiting, sent: ++this.sent });
    this.timer = setTimeout(() => this.send(), AGAIN_MS);
  }

  // The server has done all up to this number.
  confirm(from, count) {
    if (from !== this.from) return;
    this.waiting = this.waiting.filter(([number]) => number > count);
    if (!this.waiting.length) clearTimeout(this.timer);
  }

  close() {
    clearTimeout(this.timer);
  }
}
