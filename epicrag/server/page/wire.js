// What goes over the wire: questions out, lines of JSON back, and every way in which that can fail.

const KEY = "epicrag-token";

/** Something that went wrong, in words. `kind`: token, loading, busy, gone, cut, refused. */
export class Trouble extends Error {
  constructor(kind, message, hint = "") {
    super(message);
    this.kind = kind;
    this.hint = hint;
  }
}

export function setToken(token) {
  sessionStorage.setItem(KEY, token);
}

export function hasToken() {
  return Boolean(sessionStorage.getItem(KEY));
}

/** Yield the objects of an answer as they come; the last is the whole answer. Trouble for all else. */
export async function* ask(question, signal) {
  const response = await send("v1/ask", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(question),
    signal,
  });
  let isWhole = false;
  for await (const line of lines(response, signal)) {
    const item = JSON.parse(line);
    if (item.error) throw troubleOf(item.error, response.status);
    isWhole = "answer" in item;
    yield item;
  }
  if (!isWhole) throw cut();
}

export async function passage(id, signal) {
  const response = await send(`v1/passages/${encodeURIComponent(id)}`, { signal });
  return response.json();
}

/** The name of the model that answers, "" where none has one; Trouble "token" where one is asked for. */
export async function model() {
  const { data } = await (await send("v1/models")).json();
  return (data.find(({ id, root }) => root && id !== "epicrag") ?? data.find(({ root }) => root))?.id ?? "";
}

/** "ready"; "loading", "stopping" or "failed"; or "gone". */
export async function health() {
  try {
    const response = await fetch("healthz", { cache: "no-store" });
    if (response.ok) return "ready";
    return (await response.json()).status ?? "loading";
  } catch {
    return "gone";
  }
}

async function send(path, options = {}) {
  const token = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("gone", "The server does not answer.", "It may have been stopped. Your question is kept.");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function* lines(response, signal) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      yield* parts.filter((part) => part.trim());
    }
  } catch (error) {
    if (signal?.aborted || error.name === "AbortError") throw error;
    throw cut();
  }
  // What has no end of line was cut off within one.
  if (rest.trim()) throw cut();
}

function cut() {
  return new Trouble("cut", "The connection broke off before the answer was complete.",
    "What is above is all that came.");
}

async function refusal(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch { /* no JSON: the status has to do */ }
  if (response.status === 429) {
    const wait = Number(response.headers.get("Retry-After"));
    error = { ...error, hint: wait ? `Try again in ${wait} seconds.` : "Try again in a moment." };
  }
  return troubleOf(error, response.status);
}

const KINDS = { 401: "token", 429: "busy", 503: "loading" };
const WORDS = {
  401: "The server asks for a token.",
  403: "The server does not allow this.",
  413: "The question is too long for the server.",
  429: "The server has as many questions as it can take.",
  503: "The model is not ready.",
  504: "The server took too long.",
};

function troubleOf(error, status) {
  const kind = error.code === "busy" ? "busy" : KINDS[status] ?? "refused";
  const message = error.message || WORDS[status] || `The server answered with an error (${status}).`;
  return new Trouble(kind, message, error.hint ?? "");
}
