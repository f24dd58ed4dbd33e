/** The table of trajectories: filter, sort, pages by keyset, columns, and a pill for new rows. */
import { go, html, kept, link, pathOf, query, useAddress, useData, useEffect, useRef, useState } from "../core.js";
import { useLive } from "../live.js";
import { Apart, Flags, Problem, State, Waiting, ago, count, ended, money, safe, score, seconds, when, worked } from "../show.js";

/**
 * @typedef {object} Column
 * @property {string} id
 * @property {string} title
 * @property {string} [sort] name of the order in the API
 * @property {string} [kind] class of its cells
 * @property {string} [says] what the title means
 * @property {(row: any) => any} cell
 */

const errors = (calls) => (calls?.error ? html`<span class="fail" title="tool calls that failed">${calls.error} ✗</span>` : "");

/** @type {Column[]} */
export const COLUMNS = [
  { id: "score", title: "score", sort: "score", kind: "n", cell: (row) => html`<b>${score(row.score)}</b>` },
  { id: "ended", title: "ended", cell: (row) => html`<span class=${row.cause ? "fail" : ""}>${ended(row)}</span>` },
  { id: "turns", title: "turns", sort: "turns", kind: "n", cell: (row) => count(row.turns) },
  { id: "calls", title: "calls", kind: "n wide", cell: (row) => html`${errors(row.calls)} ${count(row.calls?.attempted)}` },
  { id: "tokens", title: "tokens", sort: "completion_tokens", kind: "n", says: "completion tokens", cell: (row) => count(row.completion_tokens) },
  { id: "cost", title: "cost", sort: "cost", kind: "n wide", cell: (row) => money(row.cost) },
  { id: "time", title: "time", sort: "seconds", kind: "n", says: "all stages but the queue", cell: (row) => seconds(worked(row.seconds)) },
  { id: "try", title: "try", kind: "n wide", says: "attempts", cell: (row) => (row.attempts > 1 ? html`<b class="warn">${row.attempts}</b>` : row.attempts) },
  { id: "policy", title: "policy", kind: "n wide", cell: (row) => policies(row) },
  { id: "reason", title: "why", kind: "grow", says: "reason of the verifier or message of the failure, and flags", cell: (row) => html`<${Apart} row=${row} /><${Flags} flags=${row.flags} />${safe(row.problem || row.reason)}` },
  { id: "model", title: "model", kind: "wide off", cell: (row) => safe(row.model) },
  { id: "patch", title: "patch", kind: "n wide off", cell: (row) => count(row.patch_bytes) },
  { id: "created", title: "age", sort: "created", kind: "n wide", cell: (row) => html`<time title=${when(row.finished)}>${ago(row.finished)}</time>` },
];

/** @param {any} row */
export const policies = (row) =>
  row.policy_oldest === row.policy_newest ? safe(row.policy_newest) : `${safe(row.policy_oldest)}→${safe(row.policy_newest)}`;

/** Conditions joined. @param {(string|null|undefined)[]} parts */
export const both = (...parts) => parts.filter(Boolean).join(" ");

/** A condition, its value quoted where it must be. @param {string} name @param {string} value */
export const condition = (name, value) =>
  /^[\w.\-/]+$/.test(value) ? `${name}:${value}` : `${name}:"${value.replace(/["\\]/g, "\\$&")}"`;

// --- the filter line -------------------------------------------------------------------------

export const OF_RUN = 'score:0 turns:>30 flag:* "free text"';
const EXAMPLE = 'run:r1 env:swe_smith score:0 "free text"';

/** @param {{scope: string, error: any, right?: any, example?: string}} props `example`: what one might type */
export function Filter({ scope, error, right, example = EXAMPLE }) {
  const { params } = useAddress();
  const q = params.get("q") || "";
  const [text, set] = useState(q);
  useEffect(() => set(q), [q]);
  const use = (event) => {
    event.preventDefault();
    go(link({ q: text.trim(), after: null, upto: null }));
  };
  return html`<form class="filter" role="search" onSubmit=${use}>
    <input type="search" value=${text} aria-label="filter" aria-keyshortcuts="/" spellcheck=${false} autocomplete="off"
      placeholder=${example}
      aria-invalid=${Boolean(error)} onInput=${(event) => set(event.target.value)} />
    <button>Filter</button>${q && html`<a class="button" href=${link({ q: null, after: null, upto: null })}>Clear</a>`}
    <span class="grow"></span>${right}</form>
    ${error && html`<${Misread} error=${error} q=${both(scope, q)} />`}`;
}

/** A query that is not understood, with the place. @param {{error: any, q: string}} props */
function Misread({ error, q }) {
  const at = error.at;
  return html`<${Problem} error=${error} />${Number.isInteger(at) &&
    html`<pre class="misread">${q.slice(0, at)}<mark>${q.slice(at) || " "}</mark></pre>`}`;
}

/** The words of the filter language, asked for when they are wanted. */
function Fields() {
  const [open, set] = useState(false);
  const { data } = useData(open ? "/api/fields" : null);
  return html`<details class="menu" onToggle=${(event) => set(event.target.open)}><summary>fields</summary><div><table class="small"><tbody>
    ${(data?.fields || []).map(({ name, help }) => html`<tr><th scope="row"><code>${name}:</code></th><td>${help}</td></tr>`)}</tbody></table></div></details>`;
}

/** What is wrong with the sources, and how far a search in records came. @param {{found: any}} props */
const Remarks = ({ found }) => html`${(found.problems || []).map((problem) => html`<p class="warn">! ${safe(problem)}</p>`)}
  ${Number.isInteger(found.scanned) && html`<p class="quiet">${count(found.scanned)} records were looked into${found.next ? "; the next page looks further" : ""}.</p>`}`;

// --- the table -------------------------------------------------------------------------------

/** Columns that are shown: a choice that the browser keeps. */
function useColumns() {
  const off = COLUMNS.filter((column) => (column.kind || "").includes("off")).map((column) => column.id);
  const [hidden, set] = useState(() => new Set(kept("columns") ? kept("columns").split(",") : off));
  const toggle = (id) => {
    const next = new Set(hidden);
    next.delete(id) || next.add(id);
    kept("columns", [...next].join(",") || "-");
    set(next);
  };
  return { shown: COLUMNS.filter((column) => !hidden.has(column.id)), hidden, toggle };
}

/** @param {{hidden: Set<string>, toggle: (id: string) => void}} props */
const Chooser = ({ hidden, toggle }) => html`<details class="menu"><summary>columns</summary><div>
  ${COLUMNS.map(({ id, title }) => html`<label><input type="checkbox" checked=${!hidden.has(id)} onChange=${() => toggle(id)} /> ${title}</label>`)}
</div></details>`;

/** A heading that sorts: first downwards, then upwards, then as before. @param {{column: any, sort: string}} props */
export function Heading({ column, sort }) {
  const { title, kind = "", says } = column;
  if (!column.sort) return html`<th scope="col" class=${kind} title=${says}>${title}</th>`;
  const now = sort === column.sort ? "ascending" : sort === "-" + column.sort ? "descending" : "none";
  const next = { none: "-" + column.sort, descending: column.sort, ascending: null }[now];
  return html`<th scope="col" class=${kind} aria-sort=${now} title=${says}><a href=${link({ sort: next, after: null, upto: null })}
    >${title}<span aria-hidden="true">${{ none: "", descending: " ↓", ascending: " ↑" }[now]}</span></a></th>`;
}

/** What a row is called. Where names are long, the number of the sample stays. @param {{row: any, run: boolean, only: boolean}} props */
const Name = ({ row, run, only }) => html`${!only && html`<span class="name">${run && html`<span class="quiet">${safe(row.run)} </span>`}${safe(row.instance ?? row.id)}</span>`}${row.instance !== null && html` <span class="quiet">#${row.sample}</span>`}`;

/** @param {{row: any, columns: Column[], open: Record<string, any>, run: boolean, only: boolean}} props */
function Row({ row, columns, open, run, only }) {
  return html`<tr class=${row.flags?.length ? "flagged" : ""}><td class="sign"><${State} row=${row} /></td>
    <th scope="row"><a data-nav class="named" href=${link(open, pathOf("t", row.id))} title=${safe(row.instance)}><${Name} row=${row} run=${run} only=${only} /></a></th>
    ${columns.map((column) => html`<td class=${column.kind || ""}>${column.cell(row)}</td>`)}</tr>`;
}

const USUAL = COLUMNS.filter((column) => !(column.kind || "").includes("off"));
const PLAIN = USUAL.map(({ sort: _, ...column }) => column);

/**
 * @param {object} props
 * @param {any[]} props.rows
 * @param {string} props.caption
 * @param {string} [props.sort]
 * @param {Column[]} [props.columns]
 * @param {Record<string, any>} [props.open] parameters of the pages that rows lead to
 * @param {boolean} [props.run] name the run of each row
 * @param {boolean} [props.plain] no column sorts
 * @param {boolean} [props.only] samples of one item, told by their numbers
 */
export function Table({ rows, open = {}, sort = "", run = false, plain = false, only = false, columns = plain ? PLAIN : USUAL, caption }) {
  return html`<div class="scroll" role="region" aria-label=${caption} tabindex="0"><table class="rows"><caption class="unseen">${caption}</caption>
    <thead><tr><th scope="col"><span class="unseen">state</span></th><th scope="col">${only ? "sample" : html`${run ? "run, instance" : "instance"} <span class="quiet">#sample</span>`}</th>
      ${columns.map((column) => html`<${Heading} column=${column} sort=${sort} />`)}</tr></thead>
    <tbody>${rows.map((row) => html`<${Row} key=${row.id} row=${row} columns=${columns} open=${open} run=${run} only=${only} />`)}</tbody></table></div>`;
}

/** Where one is in the list. @param {{found: any, after: string[], label: string}} props */
function Pages({ found, after, label }) {
  const pinned = { upto: found.upto };
  return html`<nav class="pages" aria-label=${label}>
    <span aria-live="polite">${count(found.count)} trajector${found.count === 1 ? "y" : "ies"}${found.indexing ? html` <span class="quiet">(still reading older ones)</span>` : ""}</span>
    ${after.length > 0 && html`<a href=${link({ after: null })}>« first</a> <a rel="prev" href=${link({ after: after.slice(0, -1) })}>‹ previous</a>`}
    <span class="quiet">page ${after.length + 1}</span>
    ${found.next && html`<a rel="next" href=${link({ ...pinned, after: [...after, found.next] })}>next ›</a>`}</nav>`;
}

/** How many rows came since; they are shown when asked for. @param {{q: string, found: any}} props */
export function Pill({ q, found }) {
  const { index } = useLive();
  const [more, set] = useState(0);
  const asked = useRef(0);
  const newest = index?.upto || 0;
  useEffect(() => set(0), [found.upto, q]);
  useEffect(() => {
    if (newest <= found.upto) return undefined;
    const wait = Math.max(0, asked.current + 4000 - Date.now());
    const timer = setTimeout(() => {
      asked.current = Date.now();
      fetchCount(q).then((total) => set(Math.max(0, total - found.count)));
    }, wait);
    return () => clearTimeout(timer);
  }, [newest, found.upto, found.count, q]);
  return more > 0 && html`<a class="pill" href=${link({ upto: null, after: null, fresh: newest })}>${more} new ↑</a>`;
}

/** @param {string} q */
const fetchCount = (q) => fetch(query("/api/trajectories", { q, limit: 1 })).then((answer) => (answer.ok ? answer.json() : { count: 0 })).then((found) => found.count, () => 0);

/** The whole list. @param {{scope?: string, extra?: string}} props `extra`: conditions of the tab */
export function Trajectories({ scope = "", extra = "" }) {
  const { params } = useAddress();
  const after = params.getAll("after");
  const sort = params.get("sort") || "";
  const q = both(scope, extra, params.get("q"));
  const path = query("/api/trajectories", { q, sort, after: after.at(-1), upto: params.get("upto"), limit: 100 });
  const { data, error } = useData(path + (params.has("fresh") ? `#${params.get("fresh")}` : ""));
  const columns = useColumns();
  const open = data ? { q, sort, upto: data.upto } : {};
  return html`<${Filter} scope=${both(scope, extra)} example=${scope ? OF_RUN : EXAMPLE} error=${error?.status === 400 ? error : null}
      right=${html`${data && html`<${Pill} q=${q} found=${data} />`}<${Fields} /><${Chooser} ...${columns} />`} />
    ${error && error.status !== 400 && html`<${Problem} error=${error} />`}
    ${!data && !error && html`<${Waiting} />`}
    ${data && html`<${Remarks} found=${data} /><${Pages} found=${data} after=${after} label="pages of the list" /><${Table} rows=${data.rows} open=${open} sort=${sort || "-created"} run=${!scope} columns=${columns.shown} caption="trajectories" />
      ${!data.rows.length && html`<p class="empty">${params.get("q") ? html`No trajectory meets this. <a href=${link({ q: null, after: null, upto: null })}>Show all of them</a>` : extra ? "✓ None." : "No trajectory has ended yet."} ${data.indexing ? "Older ones are still being read." : ""}</p>`}
      ${data.rows.length > 40 && html`<${Pages} found=${data} after=${after} label="pages of the list, below it" />`}`}`;
}
