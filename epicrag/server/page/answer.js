// An answer's text as nodes, written on while it grows: citations are buttons, everything else is text.

import { make } from "./build.js";

// Code blocks, code, bold, citations: as citations.py knows them, "[1](" is a link and none of ours.
const PARTS = /```[^\n]*\n[^]*?(?:```|$)|`[^`\n]+`|\*\*[^*\n]+\*\*|\[ *\d{1,3}(?: *[,;–-] *\d{1,3})* *\](?!\()/g;

/** Cut a text into [kind, text] parts that tile it. */
export function partsOf(text) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(PARTS)) {
    if (found.index > at) parts.push(["text", text.slice(at, found.index)]);
    parts.push([kindOf(found[0]), found[0]]);
    at = found.index + found[0].length;
  }
  if (at < text.length) parts.push(["text", text.slice(at)]);
  return parts;
}

function kindOf(part) {
  if (part.startsWith("```")) return "block";
  if (part.startsWith("`")) return "code";
  return part.startsWith("**") ? "bold" : "cite";
}

/** The numbers that a marker names, in order and each once: "[1, 3-5]" is 1, 3, 4, 5. */
export function numbersOf(marker) {
  const numbers = [];
  for (const part of marker.slice(1, -1).split(/[,;]/)) {
    const [first, last] = part.split(/[–-]/).map(Number);
    const end = Math.min(last ?? first, first + 20);
    for (let n = first; n <= end; n += 1) numbers.push(n);
  }
  return [...new Set(numbers)];
}

/** An answer in an element. `cite(n)` returns the button for a source, or null where there is none. */
export class Answer {
  constructor(element, cite) {
    this.element = element;
    this.text = "";
    this.cite = cite;
    this.shown = [];
    this.isDue = false;
  }

  /** Add what has come; it is drawn with the next frame. */
  add(delta) {
    this.text += delta;
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => { this.isDue = false; this.draw(); });
  }

  set(text) {
    this.text = text;
    this.draw();
  }

  /** Draw what has changed and leave the rest, so that a focused citation stays focused. */
  draw() {
    const parts = partsOf(this.text);
    let same = 0;
    while (same < parts.length && same < this.shown.length && isSame(parts[same], this.shown[same])) same += 1;
    for (const old of this.shown.splice(same)) old.nodes.forEach((node) => node.remove());
    for (const [kind, text] of parts.slice(same)) {
      const nodes = this.nodesOf(kind, text);
      this.element.append(...nodes);
      this.shown.push({ kind, text, nodes });
    }
  }

  nodesOf(kind, text) {
    if (kind === "cite") return this.marker(text);
    if (kind === "code") return [make("code", { textContent: text.slice(1, -1) })];
    if (kind === "bold") return [make("strong", {}, ...this.within(text.slice(2, -2)))];
    if (kind === "block") return [blockOf(text)];
    return [document.createTextNode(text)];
  }

  within(text) {
    return partsOf(text).flatMap(([kind, part]) => this.nodesOf(kind === "bold" ? "text" : kind, part));
  }

  marker(text) {
    const buttons = numbersOf(text).map(this.cite);
    return buttons.every(Boolean) ? buttons : [document.createTextNode(text)];
  }
}

function isSame([kind, text], shown) {
  return kind === shown.kind && text === shown.text;
}

function blockOf(text) {
  const code = text.slice(text.indexOf("\n") + 1).replace(/\n?```$/, "");
  return make("pre", { tabIndex: 0, role: "region", "aria-label": "Code" }, make("code", { textContent: code }));
}
