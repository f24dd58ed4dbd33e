/** Dead letters: jobs that nobody may run again before a person has looked. */
import { html, link, pathOf, query, useAddress, useData } from "../core.js";
import { Command, Facts, Marked, Problem, Waiting, ago, asText, entitle, safe, when } from "../show.js";
import { Filter } from "./list.js";
import { Lines } from "./messages.js";

/** When it was written: ids begin with milliseconds. @param {any} letter */
const written = (letter) => Number(String(letter.id).split("-")[0]) / 1000;

/** Where workers died: a line each, "unix seconds, owner, stage". @param {{died: string}} props */
const Deaths = ({ died }) => html`<table class="small"><caption class="unseen">deaths</caption><thead><tr><th scope="col">time</th><th scope="col">worker and stage</th></tr></thead>
  <tbody>${died.split("\n").filter(Boolean).map((line) => {
    const [time, ...rest] = line.trim().split(/\s+/);
    return html`<tr><td>${when(Number(time)) || safe(time)}</td><td>${safe(rest.join(" "))}</td></tr>`;
  })}</tbody></table>`;

/** @param {any} text */
const filled = (text) => Boolean(text && asText(text).text);

/** What may be done with one letter. @param {any} letter */
const lettersActions = (letter) => [
  ...(filled(letter.job) ? [{ name: "dead_requeue", title: "Requeue", args: { ids: [letter.id] } }] : []),
  { name: "dead_purge", title: "Purge…", args: { ids: [letter.id] }, confirm: "purge", danger: true },
];

/** One letter with its log. @param {{id: string, session: any, done: () => void}} props */
function Letter({ id, session, done }) {
  const { data: letter, error } = useData(`/api/dead/${encodeURIComponent(id)}`);
  if (error) return html`<${Problem} error=${error} />`;
  if (!letter) return html`<${Waiting} />`;
  return html`<div class="letter">${filled(letter.reason) && html`<pre class="prose"><${Marked} of=${letter.reason} /></pre>`}
  <${Facts} of=${[["letter", safe(letter.id)], ["run", letter.run_id && html`<a href=${pathOf("run", letter.run_id)}>${safe(letter.run_id)}</a>`], ["env", safe(letter.env)], ["stage", safe(letter.stage)], ["attempts", safe(letter.attempts)], ["written", when(written(letter))]]} />
  ${filled(letter.died) && html`<h3>Deaths</h3><${Deaths} died=${asText(letter.died).text} />`}
  ${filled(letter.log) && html`<h3>End of the log</h3><${Lines} of=${letter.log} />`}
  ${filled(letter.job) && html`<details><summary>job</summary><${Lines} of=${letter.job} /></details>`}
  <p class="tools"><${Command} line=${`hermes-queue dead requeue ${letter.id}`} /> <${session.Actions} of=${lettersActions(letter)} done=${done} /></p></div>`;
}

/** @param {{letter: any, open: boolean, session: any, done: () => void}} props */
const Row = ({ letter, open, session, done }) => html`<tr class=${open ? "open" : ""}><td class="fail">✗ ${safe(letter.cause)}</td><td class="n">${ago(written(letter))}</td>
  <th scope="row"><a data-nav href=${link({ letter: open ? null : letter.id })} aria-expanded=${open}>${safe(letter.instance_id || letter.trajectory_id || letter.group_id)}</a></th><td>${safe(letter.stage)}</td><td class="grow">${safe(letter.reason)}</td></tr>
  ${open && html`<tr><td colspan="5"><${Letter} id=${letter.id} session=${session} done=${done} /></td></tr>`}`;

/** @param {{session: any}} props */
export function Page({ session }) {
  const { params } = useAddress();
  const q = params.get("q") || "";
  const { data, error, again } = useData(query("/api/dead", { q }));
  entitle("Dead letters");
  const letters = data?.letters || [];
  const acts = letters.length ? [{ name: "dead_requeue", title: `Requeue these ${data.count}…`, args: { q } }, { name: "dead_purge", title: `Purge these ${data.count}…`, args: { q }, confirm: "purge", danger: true }] : [];
  return html`<main id="main"><p class="crumbs"><a href="/" aria-keyshortcuts="u">runs</a> ›</p>
    <div class="title"><h1 tabindex="-1">Dead letters</h1>${data && html`<span class="quiet" aria-live="polite">${data.count ?? letters.length}</span>`}<span class="grow"></span><${session.Actions} of=${acts} done=${again} /></div>
    <${Filter} scope="" example="cause:poison run:r1 env:gsm8k" error=${error?.status === 400 ? error : null} />
    ${error && error.status !== 400 && html`<${Problem} error=${error} />`}
    ${!data && !error && html`<${Waiting} />`}
    ${data && !letters.length && html`<p class="empty">${q ? html`No dead letter meets this. <a href=${link({ q: null })}>Show all of them</a>` : "✓ None: no job was given up."}</p>`}
    ${letters.length > 0 && html`<div class="scroll" role="region" aria-label="dead letters" tabindex="0"><table class="rows"><caption class="unseen">dead letters</caption>
      <thead><tr><th scope="col">cause</th><th scope="col" class="n">age</th><th scope="col">what</th><th scope="col">stage</th><th scope="col" class="grow">reason</th></tr></thead>
      <tbody>${letters.map((letter) => html`<${Row} key=${letter.id} letter=${letter} open=${params.get("letter") === letter.id} session=${session} done=${again} />`)}</tbody></table></div>`}</main>`;
}
