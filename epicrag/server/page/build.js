// Elements, made from text alone: nothing here can turn a string into markup.

/** Return an element. `properties` are set as properties, those with a dash and `role` as attributes. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name === "role" || name.includes("-")) element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const number = new Intl.NumberFormat("en");

export function count(n, word) {
  return `${number.format(n)} ${word}${n === 1 ? "" : "s"}`;
}

/** Milliseconds as a person reads them: <1 ms, 412 ms, 3.2 s. */
export function duration(ms) {
  if (ms <= 0) return "0 ms";
  if (ms < 1) return "<1 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
}

/** Put a text on the clipboard; false where the browser allows neither way. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

// A page that is not served from this machine nor over TLS has no clipboard of its own.
function copyBySelection(text) {
  const before = document.activeElement;
  const area = make("textarea", { class: "hidden", value: text, tabIndex: -1 });
  (before?.closest("dialog") ?? document.body).append(area);
  area.select();
  let done = false;
  try {
    done = document.execCommand("copy");
  } catch {
    done = false;
  }
  area.remove();
  before?.focus();
  return done;
}

/** Copy, and say on the button itself whether it worked. */
export async function copyFrom(button, text, speak) {
  const done = await copy(text);
  const label = button.dataset.label ?? button.textContent;
  button.dataset.label = label;
  button.textContent = done ? "Copied" : "Not allowed";
  speak(done ? "Copied." : "The browser does not allow copying here.");
  setTimeout(() => { button.textContent = label; }, 1600);
}
