// The passage behind a citation, beside the answer: its place, its text, and what stands around it.

import { copyFrom, make } from "./build.js";
import { passage, Trouble } from "./wire.js";

/** The last part of a path, with so many parts before it as tell it from the other paths. */
export function nameOf(path, others = []) {
  const parts = path.split("/").filter(Boolean);
  for (let take = 1; take < parts.length; take += 1) {
    const name = parts.slice(-take).join("/");
    if (!others.some((other) => other !== path && `/${other}`.endsWith(`/${name}`))) return name;
  }
  return parts.join("/") || path;
}

/** Where in its document a passage stands, in words: "page 3", "lines 4–18", "sheet Sales, A4:F17". */
export function placeOf(source) {
  const places = [];
  if (source.part) places.push(source.part);
  if (source.page !== null && source.page !== undefined && !source.part) places.push(`page ${source.page}`);
  else if (source.lines) places.push(span("line", source.lines));
  if (source.cells) places.push([...new Set(source.cells)].join(":"));
  return places.join(", ");
}

function span(word, [first, last]) {
  return first === last ? `${word} ${first}` : `${word}s ${first}–${last}`;
}

export class Panel {
  constructor(speak) {
    this.dialog = document.getElementById("passage");
    this.title = document.getElementById("passage-title");
    this.place = document.getElementById("passage-place");
    this.text = document.getElementById("passage-text");
    this.wide = window.matchMedia("(min-width: 72rem)");
    this.speak = speak;
    this.wire();
  }

  get isOpen() {
    return this.dialog.open;
  }

  /** Show source `n` of `sources`; when the panel is closed, the focus goes back to `opener`. */
  open(sources, n, opener) {
    this.sources = sources;
    this.opener = opener;
    if (!this.isOpen) this.appear();
    this.show(n);
  }

  close() {
    if (!this.isOpen) return;
    this.fetching?.abort();
    this.dialog.close();
    document.body.classList.remove("beside");
    if (this.opener?.isConnected) this.opener.focus();
    else document.getElementById("question").focus();
  }

  appear() {
    if (this.wide.matches) {
      this.dialog.show();
      document.body.classList.add("beside");
    } else {
      this.dialog.showModal();
    }
  }

  async show(n) {
    this.n = n;
    const source = this.sources.find((one) => one.n === n);
    this.fetching?.abort();
    this.fetching = new AbortController();
    this.head(source);
    this.fill(source, "");
    this.title.focus();
    const { signal } = this.fetching;
    try {
      const found = await passage(source.chunk, signal);
      if (signal.aborted) return;
      this.head({ ...source, ...found, n });
      this.fill(found, "");
    } catch (error) {
      if (signal.aborted) return;
      const why = error instanceof Trouble ? error.message : "It could not be read.";
      this.fill(source, source.text ? `${why} This is the text as it was when the answer was written.` : why);
    }
  }

  head(source) {
    const paths = this.sources.map((one) => one.path);
    this.title.replaceChildren(
      make("span", { class: "cite sample", textContent: String(source.n) }),
      make("bdi", { textContent: nameOf(source.path, paths) }));
    const rows = [
      ["Title", source.title],
      ["Place", placeOf(source)],
      ["Heading", source.heading],
      ["Path", source.path],
    ];
    this.place.replaceChildren(...rows.filter(([, value]) => value).map(([name, value]) =>
      make("div", {}, make("dt", { textContent: name }), make("dd", {}, make("bdi", { textContent: value })))));
    const numbers = this.sources.map((one) => one.n);
    this.before.disabled = source.n === Math.min(...numbers);
    this.after.disabled = source.n === Math.max(...numbers);
  }

  fill({ text = "", before_text: before, after_text: after }, trouble) {
    this.shown = text;
    this.text.replaceChildren(...[
      trouble ? make("p", { class: "alert", role: "alert", textContent: trouble }) : null,
      before ? make("div", { class: "around", dir: "auto", textContent: before }) : null,
      make("div", { class: "itself", dir: "auto", textContent: text.replace(/^\n+|\s+$/g, "") }),
      after ? make("div", { class: "around", dir: "auto", textContent: after }) : null,
    ].filter(Boolean));
    this.text.querySelector(".itself").scrollIntoView({ block: "nearest" });
    this.text.scrollTop = Math.max(0, this.text.querySelector(".itself").offsetTop - this.text.offsetTop - 72);
  }

  step(by) {
    const next = this.sources.find((one) => one.n === this.n + by);
    if (next) this.show(next.n);
  }

  wire() {
    this.before = document.getElementById("passage-before");
    this.after = document.getElementById("passage-after");
    this.before.addEventListener("click", () => this.step(-1));
    this.after.addEventListener("click", () => this.step(1));
    document.getElementById("passage-close").addEventListener("click", () => this.close());
    const button = document.getElementById("passage-copy");
    button.addEventListener("click", () => copyFrom(button, this.shown, this.speak));
    this.dialog.addEventListener("cancel", (event) => { event.preventDefault(); this.close(); });
    // A click on what is around a modal panel closes it.
    this.dialog.addEventListener("click", (event) => { if (event.target === this.dialog) this.close(); });
    this.dialog.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      if (event.key === "ArrowLeft") this.step(-1);
      if (event.key === "ArrowRight") this.step(1);
    });
  }
}
