/** Review: one flagged trajectory after the other, a label for each. */
import { api, go, html, link, pathOf, query, say, useAddress, useData, useEffect, useRef, useState } from "../core.js";
import { Facts, Flags, Problem, State, Waiting, count, ended, entitle, money, safe, score, seconds, worked } from "../show.js";
import { Filter } from "./list.js";
import { Messages } from "./messages.js";

/** Label of the API, what the button says, its kind. */
const LABELS = [["fine", "fine", "pass"], ["cheating", "cheating", "fail"], ["broken_task", "broken task", "warn"], ["unsure", "unsure", ""]];
const QUEUE = "flag:* reviewed:no";

/** @param {{id: string, next: string|null, given: string, kept: boolean, done: () => void}} props */
function Labels({ id, next, given, kept, done }) {
  const [note, set] = useState("");
  const [error, fail] = useState(null);
  const busy = useRef(false);
  useEffect(() => { set(""); fail(null); }, [id]);
  const give = async (label) => {
    if (busy.current) return;
    busy.current = true;
    try {
      await api("/api/reviews", { body: { trajectory_id: id, label, note } });
      say(`Labelled: ${label.replace("_", " ")}`);
      done();
      if (next) go(link({ at: next, m: null }));
    } catch (problem) {
      fail(problem);
    }
    busy.current = false;
  };
  if (!kept) return html`<p class="notice">Labels are not kept: start <code>hermes-queue view --reviews FILE.jsonl</code>.</p>`;
  return html`<form class="labels" aria-label="label" onSubmit=${(event) => event.preventDefault()}>${error && html`<${Problem} error=${error} />`}
    ${LABELS.map(([label, title, kind], at) => html`<button type="button" class=${kind} aria-pressed=${label === given} aria-keyshortcuts=${String(at + 1)} onClick=${() => give(label)}><kbd>${at + 1}</kbd> ${title}</button>`)}
    <input aria-label="note" placeholder="note" maxlength="2000" value=${note} onInput=${(event) => set(event.target.value)} /></form>`;
}

/** @param {{id: string, row: any}} props */
function Shown({ id }) {
  const { data, error } = useData(`/api/t/${encodeURIComponent(id)}`);
  if (error) return html`<${Problem} error=${error} />`;
  if (!data || data.row.id !== id) return html`<${Waiting} />`;
  const { row } = data;
  return html`<div class="title"><h2><${State} row=${row} /> <a href=${pathOf("t", id)}>${safe(row.instance)} <span class="quiet">#${row.sample}</span></a></h2><span class="score">${score(row.score)}</span><span>${ended(row)}</span> <${Flags} flags=${row.flags} />
      <span class="grow"></span><a class="button" href=${pathOf("group", row.group)} aria-keyshortcuts="g" title="group (g)">group</a></div>
    <${Facts} of=${[["run", safe(row.run)], ["why", safe(row.reason)], ["turns", row.turns], ["tokens", count(row.completion_tokens)], ["cost", money(row.cost)], ["time", seconds(worked(row.seconds))], ["patch", row.patch_bytes ? html`<a href=${link({ tab: "patch" }, pathOf("t", id))}>${count(row.patch_bytes)} B</a>` : ""]]} />
    <${Messages} key=${id} id=${id} data=${data} />`;
}

/** Labels already given, by trajectory. @param {any} data */
const given = (data) => new Map((data?.reviews || []).map((each) => [each.trajectory_id, each.label]));

/** @param {{rows: any[], at: string, reviews: Map<string, string>}} props */
const Queue = ({ rows, at, reviews }) => html`<nav class="queue" aria-label="queue"><ol>${rows.map((row) => html`<li key=${row.id}><a data-nav href=${link({ at: row.id, m: null })} aria-current=${row.id === at ? "true" : undefined}>
  <${State} row=${row} /> ${safe(row.instance)} <span class="quiet">#${row.sample}</span> ${score(row.score)} <${Flags} flags=${row.flags} />${reviews.has(row.id) && html` <b>✎ ${safe(reviews.get(row.id))}</b>`}</a></li>`)}</ol></nav>`;

export function Page({ session }) {
  const { params } = useAddress();
  const q = params.has("q") ? params.get("q") : QUEUE;
  const { data, error } = useData(query("/api/trajectories", { q, limit: 200 }));
  const reviews = useData("/api/reviews");
  entitle("Review");
  const rows = data?.rows || [];
  const found = rows.findIndex((row) => row.id === params.get("at"));
  const at = Math.max(0, found);
  const id = params.get("at") || rows[0]?.id || null;
  const to = (place) => rows[place] && link({ at: rows[place].id, m: null });
  return html`<main id="main" class="review"><p class="crumbs"><a href="/" aria-keyshortcuts="u">runs</a> ›</p>
    <div class="title"><h1 tabindex="-1">Review</h1>${rows.length > 0 && html`<span aria-live="polite">${at + 1} of ${data.count}</span>`}<span class="grow"></span>
      ${to(at - 1) && html`<a class="button" rel="prev" href=${to(at - 1)} aria-keyshortcuts="[" title="previous ([)">‹</a>`} ${to(at + 1) && html`<a class="button" rel="next" href=${to(at + 1)} aria-keyshortcuts="]" title="next (])">›</a>`}</div>
    <${Filter} scope="" example=${QUEUE} error=${error?.status === 400 ? error : null} />
    ${error && error.status !== 400 && html`<${Problem} error=${error} />`}
    ${!data && !error && html`<${Waiting} />`}
    ${data && !rows.length && !id && html`<p class="empty">✓ Nothing is left to review here. <a href=${link({ q: "flag:*", at: null, m: null })}>All that are flagged</a>, or any other filter.</p>`}
    ${rows.length > 1 && html`<details class="menu-line" open=${false}><summary>queue</summary><${Queue} rows=${rows} at=${id} reviews=${given(reviews.data)} /></details>`}
    ${id && html`<${Labels} id=${id} next=${rows[at + 1]?.id || null} given=${given(reviews.data).get(id) || ""} kept=${session.reviews} done=${reviews.again} /><${Shown} id=${id} />`}</main>`;
}
