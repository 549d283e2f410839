// What an answer cost: tokens by where their keys and values came from, and the time of each step.

import { count, duration, make, number } from "./build.js";

const KINDS = [
  ["exact", "exact"],
  ["stitched", "stitched"],
  ["recomputed", "recomputed"],
  ["fresh", "fresh"],
];
const STEPS = [
  ["retrieve", "retrieve"],
  ["wait", "wait"],
  ["load", "load"],
  ["stitch", "stitch"],
  ["select", "select"],
  ["link", "link"],
];
const RARE = new Set(["wait", "select"]);

/** Return the section for a receipt. Bars of time are drawn against `longest` milliseconds; see `scale`. */
export function receiptOf(receipt, usage) {
  const tokens = KINDS.map(([kind, name]) => ({ kind, name, n: receipt[kind] }));
  const reused = receipt.exact + receipt.stitched;
  const share = receipt.context_tokens ? Math.floor((100 * reused) / receipt.context_tokens) : 0;
  const head = make("p", { class: "head" },
    make("strong", { textContent: `${share} % reused` }),
    ` of ${count(receipt.context_tokens, "context token")}, first word after `,
    make("strong", { textContent: duration(receipt.ms.first_token) }));
  return make("section", { class: "receipt", "aria-label": "What was reused" },
    head,
    tokenBar(tokens),
    tokenList(tokens),
    timeBar(receipt.ms),
    timeList(receipt.ms),
    make("p", { class: "policy" }, ...summaryOf(receipt, usage)));
}

/** Draw the bars of time of several receipts to one scale, so that their lengths can be compared. */
export function scale(sections) {
  const bars = sections.map((section) => section.querySelector(".bar.time"));
  const longest = Math.max(...bars.map((bar) => Number(bar.dataset.total)));
  for (const bar of bars) bar.style.width = `${longest ? Math.max(2, (100 * bar.dataset.total) / longest) : 100}%`;
}

function tokenBar(tokens) {
  const label = `Tokens: ${tokens.map(({ name, n }) => `${number.format(n)} ${name}`).join(", ")}`;
  return make("div", { class: "bar", role: "img", "aria-label": label },
    ...tokens.filter(({ n }) => n > 0).map(({ kind, n }) => segment(kind, n)));
}

function tokenList(tokens) {
  return make("dl", { class: "figures" }, ...tokens.map(({ kind, name, n }) =>
    make("div", {},
      make("dt", {}, make("span", { class: `swatch ${kind}` }), name),
      make("dd", { textContent: number.format(n) }))));
}

function timeBar(ms) {
  const steps = STEPS.map(([step, name]) => ({ step, name, n: ms[step] }));
  const known = steps.reduce((sum, { n }) => sum + n, 0);
  const rest = Math.max(0, ms.first_token - known);
  const writing = Math.max(0, ms.total - Math.max(ms.first_token, known));
  const parts = [...steps, { step: "rest", name: "other", n: rest }, { step: "writing", name: "writing", n: writing }];
  const label = `Time: ${parts.filter(({ n }) => n >= 0.5).map(({ name, n }) => `${name} ${duration(n)}`).join(", ")}`;
  const bar = make("div", { class: "bar time", role: "img", "aria-label": label },
    ...parts.filter(({ n }) => n > 0).map(({ step, n }) => segment(step, n)));
  bar.dataset.total = ms.total;
  return bar;
}

function timeList(ms) {
  const steps = STEPS.filter(([step]) => ms[step] >= 1 || !RARE.has(step)).map(([step, name]) => [step, name, ms[step]]);
  const figures = [...steps, ["writing", "writing", Math.max(0, ms.total - ms.first_token)]];
  return make("dl", { class: "figures times" }, ...figures.map(([step, name, value]) =>
    make("div", {},
      make("dt", {}, make("span", { class: `swatch ${step}` }), name),
      make("dd", { textContent: duration(value) }))));
}

function summaryOf(receipt, usage) {
  const times = `first token ${duration(receipt.ms.first_token)} · total ${duration(receipt.ms.total)} · policy `;
  const written = usage?.completion_tokens ? [` · ${count(usage.completion_tokens, "token")} written`] : [];
  const fallback = receipt.fallback ? [` · fell back: ${receipt.fallback}`] : [];
  return [times, make("code", { textContent: receipt.policy }), ...written, ...fallback];
}

function segment(kind, n) {
  const part = make("span", { class: `part ${kind}` });
  part.style.flexGrow = String(n);
  return part;
}
