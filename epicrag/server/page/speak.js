// What a screen reader is told: whole sentences, and not more often than they can be heard.

const PAUSE_MS = 2500;
const SENTENCE = /[^]*[.!?。！？:](?=\s)|[^]*\n/;

export class Speaker {
  constructor(element) {
    this.element = element;
    this.waiting = "";
    this.spokenAt = 0;
  }

  /** Say this now, in place of what was said before. */
  say = (text) => {
    // The same words again are only spoken when the region was empty in between.
    this.element.textContent = "";
    requestAnimationFrame(() => { this.element.textContent = text; });
    this.spokenAt = performance.now();
  };

  /** Take a piece of an answer; whole sentences are said when the last ones had their time. */
  feed(delta) {
    this.waiting += delta;
    if (performance.now() - this.spokenAt < PAUSE_MS) return;
    const whole = SENTENCE.exec(this.waiting)?.[0];
    if (!whole) return;
    this.waiting = this.waiting.slice(whole.length);
    this.say(heard(whole));
  }

  /** Say what is left of an answer, and what there is to know about it. */
  finish(last) {
    const rest = heard(this.waiting);
    this.waiting = "";
    this.say(rest ? `${rest} ${last}` : last);
  }

  forget() {
    this.waiting = "";
  }
}

function heard(text) {
  return text.replace(/\s*\[(\d[\d ,;–-]*)\]/g, " (source $1)").trim();
}
