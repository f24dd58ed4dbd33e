/** How numbers, texts and states are shown; small components without state of their own. */
import { copy, html } from "./core.js";

// --- numbers -------------------------------------------------------------------------------

const known = (value) => value !== null && value !== undefined && Number.isFinite(Number(value));

/** @type {[number, string][]} */
const THOUSANDS = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];
/** @type {[number, string][]} */
const POWERS = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];

/** 18211 as "18.2k". @param {number|null} value */
export function count(value) {
  if (!known(value)) return "–";
  const n = Number(value);
  if (Math.abs(n) < 10000) return Number.isInteger(n) ? String(n) : n.toFixed(1);
  const at = THOUSANDS.findIndex(([size]) => Math.abs(n) >= size);
  const [size, unit] = THOUSANDS[at];
  return (n / size).toFixed(n / size < 100 ? 1 : 0) + unit;
}

/** @param {number|null} value */
export function bytes(value) {
  if (!known(value)) return "–";
  const n = Number(value);
  if (n < 1024) return `${n} B`;
  const [size, unit] = POWERS[POWERS.findIndex(([least]) => n >= least)];
  return `${(n / size).toFixed(1)} ${unit}`;
}

/** Two digits, or more where there are more. @param {number} n */
const brief = (n) => (n < 9.95 ? n.toFixed(1) : n.toFixed(0));

/** Seconds as "92 s", "4.1 min", "60 min", "2.0 h". @param {number|null} value */
export function seconds(value) {
  if (!known(value)) return "–";
  const n = Number(value);
  if (n < 100) return `${brief(n)} s`;
  if (n < 5400) return `${brief(n / 60)} min`;
  return n < 172800 ? `${brief(n / 3600)} h` : `${brief(n / 86400)} d`;
}

/** @param {number|null} value */
export function money(value) {
  if (!known(value)) return "–";
  const n = Number(value);
  return `$${n.toFixed(n !== 0 && Math.abs(n) < 0.095 ? 3 : 2)}`;
}

/** A score, mean or share: at most two decimals. @param {number|null} value */
export function score(value) {
  if (!known(value)) return "–";
  const n = Number(value);
  return Number.isInteger(n) ? n.toFixed(1) : n.toFixed(2).replace(/^(-?)0\./, "$1.");
}

/** A number with the sign that is as wide as its digits. @param {number|null|undefined} value @param {number} places */
export const signed = (value, places) => (known(value) ? Number(value).toFixed(places).replace("-", "−") : "");

/** How long ago. @param {number|null} at Unix seconds */
export const ago = (at) => (known(at) && at > 0 ? seconds(Math.max(0, Date.now() / 1000 - at)) : "–");

/** @param {number|null} at Unix seconds */
export const when = (at) =>
  known(at) && at > 0 ? new Date(at * 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC" : "";

/** The time of all stages but the queue. @param {Record<string, number>} stages */
export function worked(stages) {
  const parts = Object.entries(stages || {}).filter(([name]) => name !== "queue");
  return parts.length ? parts.reduce((sum, [, value]) => sum + value, 0) : null;
}

// --- texts out of records --------------------------------------------------------------------

/** Characters that deceive or cannot be seen: controls, bidirectional and zero-width ones. */
const HIDDEN = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5" +
    "\\u180b-\\u180e\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb" +
    "\\u{e0000}-\\u{e007f}]",
  "gu",
);

/** Such a character as a sign that is seen. @param {string} char */
function sign(char) {
  const code = char.codePointAt(0) || 0;
  if (code < 32) return String.fromCodePoint(0x2400 + code);
  return code === 127 ? "␡" : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

/** A plain value out of a record as text that deceives nobody. @param {unknown} value */
export function safe(value) {
  if (value === null || value === undefined) return "";
  const text = typeof value === "string" ? value : typeof value === "object" ? JSON.stringify(value) : String(value);
  return (text.toWellFormed ? text.toWellFormed() : text).replace(HIDDEN, sign);
}

/** Name this page in the browser's tab. @param {unknown} what */
export function entitle(what) {
  document.title = `${safe(what)} – hermes-queue`;
}

/** @typedef {{text: string, bytes: number, cut: boolean, marks: [number, number, string][]}} Text */

const CLASS = /^(ansi-[a-z0-9-]+|ctl|cut|finding)$/;
const MOST_MARKS = 20000;

/** A value that should be a text as one. @param {any} value @returns {Text} */
export function asText(value) {
  if (value && typeof value === "object" && typeof value.text === "string") return value;
  const text = safe(value);
  return { text, bytes: text.length, cut: false, marks: [] };
}

/** A part of a text, with its marks. @param {Text} whole @param {number} from @param {number} to */
export function part(whole, from, to) {
  const marks = [];
  for (const [start, end, name] of whole.marks || []) {
    if (end > from && start < to) marks.push([Math.max(start, from) - from, Math.min(end, to) - from, name]);
  }
  return { text: whole.text.slice(from, to), bytes: to - from, cut: false, marks };
}

/** Where marks begin and end, in order. @param {[number, number, string][]} marks */
function edges(marks) {
  /** @type {[number, number, string][]} */
  const found = [];
  for (const [start, end, name] of marks.slice(0, MOST_MARKS)) {
    if (start < end && CLASS.test(name)) found.push([start, 1, name], [end, -1, name]);
  }
  return found.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
}

/** A text with its marks as spans. @param {{of: any}} props */
export function Marked({ of }) {
  const { text, marks } = asText(of);
  if (!marks || !marks.length) return html`${text}`;
  const open = new Map();
  const pieces = [];
  let at = 0;
  for (const [place, step, name] of edges(marks)) {
    if (place > at) pieces.push(piece(text.slice(at, place), open));
    at = Math.max(at, place);
    const depth = (open.get(name) || 0) + step;
    if (depth > 0) open.set(name, depth);
    else open.delete(name);
  }
  if (at < text.length) pieces.push(text.slice(at));
  return html`${pieces}`;
}

/** @param {string} text @param {Map<string, number>} open */
const piece = (text, open) =>
  open.size ? html`<span class=${[...open.keys()].join(" ")}>${text}</span>` : text;

// --- states ----------------------------------------------------------------------------------

/** @typedef {{sign: string, kind: "pass"|"part"|"fail"|"none"|"plain"|"warned", says: string}} State */

/** What a row is, told by a sign as well as a colour. @param {any} row @returns {State} */
export function stateOf(row) {
  if (row.status === "failed") return { sign: "○", kind: "none", says: "not measured: failed" };
  if (row.status === "damaged") return { sign: "⚠", kind: "warned", says: "damaged: cannot be read" };
  if (row.status === "unscored") return { sign: "·", kind: "plain", says: "ended, has no verifier" };
  if (row.status === "running") return { sign: "…", kind: "plain", says: "running" };
  if (row.score >= 1) return { sign: "✓", kind: "pass", says: "full score" };
  return row.score > 0
    ? { sign: "◐", kind: "part", says: "part of the score" }
    : { sign: "✗", kind: "fail", says: "no score" };
}

/** @param {{row: any}} props */
export function State({ row }) {
  const { sign, kind, says } = stateOf(row);
  return html`<span class=${"state " + kind} title=${says}
    ><span aria-hidden="true">${sign}</span><span class="unseen">${says}</span></span>`;
}

/** How it ended, in words. @param {any} row */
export const ended = (row) =>
  row.cause ? `${safe(row.cause)}${row.stage ? ` at ${safe(row.stage)}` : ""}` : safe(row.stop_reason);

/** What sets a row apart from others of its group. @param {{row: any}} props */
export const Apart = ({ row }) =>
  html`${["extra", "stale", "evaluation"].filter((name) => row[name]).map((name) => html`<span class="tag quiet">${name}</span> `)}`;

/** @param {{flags: string[]}} props */
export const Flags = ({ flags }) =>
  html`${(flags || []).map((flag) => html`<span class="flag"><span aria-hidden="true">! </span>${safe(flag)}</span> `)}`;

// --- components ------------------------------------------------------------------------------

/** @param {{error: any}} props */
export const Problem = ({ error }) =>
  html`<div class="problem" role="alert"><b><span aria-hidden="true">! </span>${error.message}</b> ${error.hint || (error.status === 404 ? ELSEWHERE : "")}</div>`;
const ELSEWHERE = "It may be in a source that this server does not read, still be on its way into the list, or have been purged.";

/** Something is awaited. */
export const Waiting = () => html`<p class="quiet waiting" role="status">…</p>`;

/** A command line to copy (key c). @param {{line: string}} props */
export const Command = ({ line }) => html`<span class="command"><code>$ ${line}</code>
  <button class="small" data-copy=${line} aria-keyshortcuts="c" title="copy the command (c)" onClick=${() => copy(line)}>copy</button></span>`;

/** A share as a bar. @param {{of: number, kind?: string}} props */
export const Bar = ({ of, kind = "" }) =>
  html`<span class=${"bar " + kind} aria-hidden="true"><span style=${{ width: `${Math.max(0, Math.min(1, of || 0)) * 100}%` }}></span></span>`;

/** Label and value pairs. @param {{of: [string, any][]}} props */
export const Facts = ({ of }) => html`<dl class="facts">
  ${of.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
</dl>`;

const DEEPEST = 8;
const MOST = 200;

/** Any JSON value as a tree; deep or long parts open on demand. @param {{of: any, depth?: number}} props */
export function Tree({ of, depth = 0 }) {
  if (of === null || typeof of !== "object") {
    return html`<span class=${"value " + (of === null ? "null" : typeof of)}>${of === null ? "null" : safe(of)}</span>`;
  }
  if (typeof of.text === "string" && Array.isArray(of.marks)) return html`<span class="value string"><${Marked} of=${of} /></span>`;
  const entries = Object.entries(of);
  if (!entries.length) return html`<span class="value">${Array.isArray(of) ? "[]" : "{}"}</span>`;
  if (depth >= DEEPEST) return html`<span class="value">${safe(of).slice(0, 4000)}</span>`;
  return html`<ul class="tree">${entries.slice(0, MOST).map(([name, value]) => html`<li><${Branch} name=${name} value=${value} depth=${depth} /></li>`)}
    ${entries.length > MOST && html`<li class="quiet">and ${entries.length - MOST} more</li>`}</ul>`;
}

/** @param {{name: string, value: any, depth: number}} props */
function Branch({ name, value, depth }) {
  const parent = value !== null && typeof value === "object" && Object.keys(value).length && !Array.isArray(value.marks);
  if (!parent) return html`<span class="key">${safe(name)}</span> <${Tree} of=${value} depth=${depth + 1} />`;
  const size = Object.keys(value).length;
  return html`<details open=${depth < 1 && size <= 12}><summary><span class="key">${safe(name)}</span>
    <span class="quiet">${Array.isArray(value) ? `[${size}]` : `{${size}}`}</span></summary><${Tree} of=${value} depth=${depth + 1} /></details>`;
}
