// The page: a conversation, the form that goes on with it, and what can get in the way.

import { Answer } from "./answer.js";
import { copyFrom, count, make } from "./build.js";
import { nameOf, Panel, placeOf } from "./passage.js";
import { receiptOf, scale } from "./receipt.js";
import { Speaker } from "./speak.js";
import { ask, hasToken, health, model, setToken, Trouble } from "./wire.js";

const TURNS_SENT = 8;
const SAYS = {
  "": "",
  full: "Every passage is read again, as if nothing had been kept: the reference, and the slowest.",
  prefix: "Only what stands behind the same beginning as an earlier prompt is reused: ordinary prefix caching.",
  none: "All passages are used as they lie, and nothing of them is computed again: the fastest, the least exact.",
};

const at = (id) => document.getElementById(id);
const form = at("ask");
const question = at("question");
const speaker = new Speaker(at("live"));
const panel = new Panel(speaker.say);

let turns = [];
let running = null;
let server = "wait";
let watching = null;

// --- asking --------------------------------------------------------------------------------------

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = question.value.trim();
  if (!text || running) return;
  question.value = "";
  grow();
  begin(text, historyOf(turns));
  if (window.matchMedia("(pointer: coarse)").matches) question.blur();
  else question.focus();
});

at("stop").addEventListener("click", () => stop());

question.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
});
question.addEventListener("input", () => grow());

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.defaultPrevented) {
    if (panel.isOpen) panel.close();
    else stop();
  }
  if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.shiftKey) {
    event.preventDefault();
    panel.close();
    question.focus();
  }
});

at("new").addEventListener("click", () => {
  stop();
  panel.close();
  turns = [];
  at("turns").replaceChildren();
  at("welcome").hidden = false;
  at("new").hidden = true;
  at("trouble").hidden = true;
  question.focus();
  speaker.say("A new conversation.");
});

at("policy").addEventListener("change", () => { at("policy-says").textContent = SAYS[at("policy").value]; });

function stop() {
  running?.abort();
}

function grow() {
  question.style.height = "auto";
  question.style.height = `${question.scrollHeight + 2}px`;
}

/** What the model is told of the conversation: the last turns that it answered, each as it was last asked. */
function historyOf(before) {
  const replaced = new Set(before.map((turn) => turn.again).filter(Boolean));
  return before
    .filter((turn) => turn.isAnswered && !replaced.has(turn))
    .slice(-TURNS_SENT)
    .flatMap((turn) => [{ role: "user", text: turn.question }, { role: "assistant", text: turn.answer.text }]);
}

/** Ask, and write the answer into a new turn. `again`: the turn whose question is asked another time. */
async function begin(text, history, again = null) {
  const turn = openTurn(text, history, again);
  running = new AbortController();
  setBusy(true);
  speaker.say("Looking for passages.");
  try {
    await answer(turn, running.signal);
  } catch (error) {
    fail(turn, error);
  }
  running = null;
  setBusy(false);
  turn.element.removeAttribute("aria-busy");
  turn.doing.remove();
}

async function answer(turn, signal) {
  if (server !== "ready") {
    doing(turn, server === "loading" ? "Waiting until the model is loaded …" : "Waiting for the server …");
    await untilReady(signal);
  }
  doing(turn, "Looking for passages …");
  for await (const item of ask(requestOf(turn), signal)) {
    if (item.hits) found(turn, item.hits);
    else if (item.notice) doing(turn, item.notice);
    else if (item.delta) write(turn, item.delta);
    else if ("answer" in item) finish(turn, item);
  }
}

function requestOf(turn) {
  const request = { question: turn.question, history: turn.history, stream: true };
  if (at("policy").value) request.link_policy = at("policy").value;
  if (at("passages").value) request.k = Number(at("passages").value);
  return request;
}

function found(turn, hits) {
  turn.sources = hits.map((hit, i) => ({ ...hit, n: i + 1 }));
  if (hits.length) doing(turn, `Reading ${count(hits.length, "passage")} …`);
}

function write(turn, delta) {
  const follows = isAtEnd();
  if (!turn.answer.text) doing(turn, "");
  turn.answer.add(delta);
  speaker.feed(delta);
  if (follows) requestAnimationFrame(() => window.scrollTo({ top: document.documentElement.scrollHeight }));
}

function finish(turn, whole) {
  const follows = isAtEnd();
  turn.answer.set(whole.answer);
  turn.isAnswered = whole.answered;
  turn.element.classList.toggle("nothing", !whole.answered);
  const texts = new Map(turn.sources.map((source) => [source.chunk, source.text]));
  turn.sources = whole.sources.map((source) => ({ ...source, text: texts.get(source.chunk) }));
  turn.body.append(...[
    notesOf(whole.notes ?? []),
    whole.answered ? null : nothingFound(),
    sourcesOf(turn),
    whole.receipt ? receiptIn(turn, whole) : null,
    actionsOf(turn),
  ].filter(Boolean));
  speaker.finish(lastWords(turn, whole));
  if (follows) requestAnimationFrame(() => turn.element.scrollIntoView({ block: "end" }));
}

function lastWords(turn, whole) {
  if (!whole.answered) return "Nothing was found.";
  const cited = turn.sources.filter((source) => source.cited).length;
  const notes = (whole.notes ?? []).map((note) => `Note: ${note}.`).join(" ");
  return `End of the answer. ${count(cited, "source")} cited. ${notes}`;
}

function fail(turn, error) {
  speaker.forget();
  turn.answer.draw();
  if (error.name === "AbortError") {
    turn.isAnswered = Boolean(turn.answer.text);
    turn.body.append(make("p", { class: "note", textContent: "Stopped." }), actionsOf(turn));
    speaker.say("Stopped.");
    return;
  }
  if (!(error instanceof Trouble)) console.error(error);
  const { kind = "refused", message, hint = "" } = error instanceof Trouble ? error
    : { message: "The server sent something that this page does not understand." };
  turn.body.append(make("div", { class: "alert", role: "alert" },
    make("p", { textContent: message }),
    hint ? make("p", { class: "hint", textContent: hint }) : null), actionsOf(turn, "Try again"));
  if (kind === "token") openDoor();
  if (kind === "gone" || kind === "cut" || kind === "loading") watch();
}

// --- a turn --------------------------------------------------------------------------------------

function openTurn(text, history, again) {
  at("welcome").hidden = true;
  at("new").hidden = false;
  at("trouble").hidden = true;
  const id = `question-${at("turns").childElementCount + 1}`;
  const doing = make("p", { class: "doing" });
  const body = make("div", { class: "body" });
  const text_ = make("div", { class: "answer", dir: "auto" });
  const element = make("li", { class: "turn", "aria-busy": "true" },
    make("article", { "aria-labelledby": id },
      make("h2", { id, class: "asked", dir: "auto", textContent: text }), text_, doing, body));
  const turn = { question: text, history, again, element, body, doing, sources: [], isAnswered: false };
  turn.answer = new Answer(text_, (n) => citation(turn, n));
  turns.push(turn);
  at("turns").append(element);
  element.scrollIntoView({ block: "end" });
  return turn;
}

function doing(turn, text) {
  turn.doing.textContent = text;
}

function citation(turn, n) {
  const source = turn.sources.find((one) => one.n === n);
  if (!source) return null;
  const name = [nameOf(source.path), placeOf(source)].filter(Boolean).join(", ");
  const button = make("button", { type: "button", class: "cite", textContent: String(n), title: name,
    "aria-label": `Source ${n}: ${name}`, "aria-haspopup": "dialog" });
  button.addEventListener("click", () => panel.open(turn.sources, n, button));
  return button;
}

function notesOf(notes) {
  if (!notes.length) return null;
  return make("ul", { class: "notes", "aria-label": "Notes" },
    ...notes.map((note) => make("li", { class: "note", textContent: capital(note) })));
}

function nothingFound() {
  return make("p", { class: "note", textContent: "Other words may find it, or the document is not in the index yet." });
}

function sourcesOf(turn) {
  if (!turn.sources.length) return null;
  const cited = turn.sources.filter((source) => source.cited);
  const others = turn.sources.filter((source) => !source.cited);
  const rest = others.length && make("details", {},
    make("summary", { textContent: cited.length ? `${others.length} more read, not cited` : `${count(others.length, "passage")} read, none cited` }),
    listOf(turn, others));
  return make("section", { class: "sources", "aria-label": "Sources" },
    cited.length ? listOf(turn, cited) : null, rest || null);
}

function listOf(turn, sources) {
  const paths = turn.sources.map((source) => source.path);
  return make("ol", {}, ...sources.map((source) => {
    const where = [placeOf(source), source.heading].filter(Boolean).join(" · ");
    const button = make("button", { type: "button", class: "source", "aria-haspopup": "dialog" },
      make("span", { class: "number", textContent: String(source.n) }), " ",
      make("bdi", { class: "name", textContent: nameOf(source.path, paths) }), " ",
      where ? make("bdi", { class: "where", textContent: where }) : null);
    button.addEventListener("click", () => panel.open(turn.sources, source.n, button));
    return make("li", {}, button);
  }));
}

function receiptIn(turn, whole) {
  turn.receipt = receiptOf(whole.receipt, whole.usage);
  // The same question again, by another policy: the bars of time are drawn to one scale.
  const same = turns.filter((other) => other.receipt && other.question === turn.question);
  scale(same.map((other) => other.receipt));
  return turn.receipt;
}

function actionsOf(turn, word = "Ask again") {
  const copy = make("button", { type: "button", class: "quiet", textContent: "Copy answer", hidden: !turn.isAnswered });
  copy.addEventListener("click", () => copyFrom(copy, asText(turn), speaker.say));
  const again = make("button", { type: "button", class: "quiet again", textContent: word,
    title: "Ask the same question, with what is chosen below" });
  again.addEventListener("click", () => {
    if (running) return;
    begin(turn.question, turn.history, turn);
    question.focus();
  });
  return make("div", { class: "actions" }, copy, again);
}

/** An answer as it is copied: the text, and the sources that its numbers mean. */
function asText(turn) {
  const cited = turn.sources.filter((source) => source.cited);
  const lines = cited.map((source) => `[${source.n}] ${[source.path, placeOf(source)].filter(Boolean).join(", ")}`);
  return [turn.answer.text, ...(lines.length ? ["", ...lines] : [])].join("\n");
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function isAtEnd() {
  const page = document.documentElement;
  return page.scrollHeight - page.clientHeight - window.scrollY < 120;
}

function setBusy(isBusy) {
  at("send").hidden = isBusy;
  at("stop").hidden = !isBusy;
  for (const button of document.querySelectorAll(".again")) button.disabled = isBusy;
}

// --- the server ----------------------------------------------------------------------------------

const STATES = {
  wait: ["wait", "Connecting …"],
  loading: ["wait", "The model is loading …"],
  stopping: ["bad", "The server is stopping"],
  failed: ["bad", "The model could not be loaded: see what the server wrote"],
  gone: ["bad", "The server does not answer"],
};

function setServer(state, text = "") {
  server = state;
  const [mark, words] = STATES[state] ?? ["ok", text];
  at("state").dataset.state = mark;
  if (at("state").textContent !== words) at("state").textContent = words;
}

/** Look at the server until it is ready; more and more seldom. */
function watch() {
  watching ??= lookUntilReady().finally(() => { watching = null; });
  return watching;
}

async function lookUntilReady() {
  for (let pause = 500; ; pause = Math.min(5000, pause * 1.4)) {
    const state = await health();
    if (state === "ready") return greet();
    setServer(state);
    await new Promise((resolve) => { setTimeout(resolve, pause); });
  }
}

async function greet() {
  try {
    setServer("ready", nameOf(await model()) || "Ready");
  } catch (error) {
    setServer("ready", "Ready");
    if (error.kind === "token") openDoor();
  }
}

function untilReady(signal) {
  return new Promise((resolve, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason));
    watch().then(resolve, reject);
  });
}

// --- the token -----------------------------------------------------------------------------------

function openDoor() {
  setServer("ready", "A token is needed");
  if (hasToken()) {
    at("door-title").textContent = "The server did not take this token";
    at("door-says").textContent = "Look for a letter too many or too few, or ask whoever runs the server.";
    at("token").setAttribute("aria-invalid", "true");
  }
  at("token").value = "";
  if (!at("door").open) at("door").showModal();
}

at("door-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setToken(at("token").value.trim());
  at("door").close();
  question.focus();
  greet();
});

question.focus();
watch();
