/** What became of a trajectory: its patch, the verifier's word, attempts, events, the record. */
import { html, link, useData, useState } from "../core.js";
import { Command, Facts, Marked, Problem, Tree, Waiting, asText, bytes, count, safe, seconds, when } from "../show.js";
import { Lines } from "./messages.js";

// --- patch -----------------------------------------------------------------------------------

const FOLD_LINES = 400;

/** Numbers of the old and the new line, where the hunk's header tells them. @param {any} hunk */
function numbered(hunk) {
  const [, old, fresh] = /^@@ -(\d+)(?:,\d+)? \+(\d+)/.exec(asText(hunk.header).text) || [];
  let [a, b] = [Number(old || 1), Number(fresh || 1)];
  return hunk.lines.map(([kind, text]) => ({ kind, text, old: kind === "+" ? "" : a++, fresh: kind === "-" ? "" : b++ }));
}

/** @param {{hunk: any}} props */
function Hunk({ hunk }) {
  const lines = numbered(hunk);
  const [all, show] = useState(lines.length <= FOLD_LINES);
  return html`<tbody><tr class="hunk"><th colspan="3" scope="rowgroup"><${Marked} of=${asText(hunk.header)} /></th></tr>
    ${lines.slice(0, all ? undefined : FOLD_LINES).map(({ kind, text, old, fresh }) => html`<tr class=${{ "+": "added", "-": "removed" }[kind] || ""}><td class="n">${old}</td><td class="n">${fresh}</td><td><pre>${kind}<${Marked} of=${text} /></pre></td></tr>`)}
    ${!all && html`<tr><td colspan="3"><button class="more" onClick=${() => show(true)}>show ${lines.length - FOLD_LINES} lines</button></td></tr>`}</tbody>`;
}

/** @param {{file: any}} props */
const File = ({ file }) => html`<details class="file" open><summary data-nav><b>${safe(file.path)}</b>${file.old_path && file.old_path !== file.path ? html` <span class="quiet">from ${safe(file.old_path)}</span>` : ""}
    <span class="pass">+${file.added}</span> <span class="fail">−${file.removed}</span> ${file.kind !== "changed" && html`<span class="quiet">${file.kind}</span>`} ${file.test && html`<span class="flag">! test file</span>`}</summary>
  <div class="scroll" role="region" aria-label=${safe(file.path)} tabindex="0"><table class="diff"><caption class="unseen">changes of ${safe(file.path)}</caption>${file.hunks.map((hunk) => html`<${Hunk} hunk=${hunk} />`)}</table></div></details>`;

/** @param {{id: string}} props */
export function Patch({ id }) {
  const { data, error } = useData(`/api/t/${encodeURIComponent(id)}/patch`);
  if (error) return html`<${Problem} error=${error} />`;
  if (!data) return html`<${Waiting} />`;
  const odd = data.text && asText(data.text).text ? data.text : null;
  if (!data.files.length) return odd ? html`<${Lines} of=${odd} />` : html`<p class="empty">The report holds no patch.</p>`;
  const sum = (name) => data.files.reduce((total, file) => total + file[name], 0);
  return html`<p class="pages">${data.files.length} file${data.files.length === 1 ? "" : "s"} <span class="pass">+${sum("added")}</span> <span class="fail">−${sum("removed")}</span> <span class="quiet">${bytes(data.bytes)}</span>${data.cut && html` <span class="warn">! cut: the record holds no more</span>`}</p>
    ${data.files.map((file, at) => html`<${File} key=${at} file=${file} />`)}
    ${odd && html`<h2>What is no diff</h2><${Lines} of=${odd} />`}`;
}

// --- verifier --------------------------------------------------------------------------------

/** @param {{title: string, names: any[], kind: string, sign: string, open: boolean}} props */
function Tests({ title, names, kind, sign, open }) {
  if (!names?.length) return null;
  return html`<details class="tests" open=${open}><summary><span class=${kind}>${sign} ${names.length} ${title}</span></summary>
    <ul>${names.slice(0, 2000).map(({ name, outcome }) => html`<li><span class=${kind} aria-hidden="true">${sign}</span> <code>${safe(name)}</code>${outcome && outcome !== "failed" ? html` <span class="quiet">${safe(outcome)}</span>` : ""}</li>`)}</ul></details>`;
}

/** Sets of tests and how many of each passed. @param {{counts: Record<string, any>}} props */
const Counts = ({ counts }) => html`<table class="small"><caption class="unseen">tests</caption><thead><tr><th scope="col">tests</th><th scope="col" class="n">passed</th><th scope="col" class="n">failed</th><th scope="col" class="n">not run</th></tr></thead>
  <tbody>${Object.entries(counts).map(([name, { passed, failed, not_run }]) => html`<tr><th scope="row">${safe(name)}</th><td class="n pass">${count(passed)}</td><td class=${"n " + (failed ? "fail" : "quiet")}>${count(failed)}</td><td class="n quiet">${count(not_run)}</td></tr>`)}</tbody></table>`;

/** What the verifier holds against it. @param {{found: any}} props */
const Against = ({ found }) => html`${["flags", "suspect"].map((name) => found[name]?.length > 0 && html`<p>${found[name].map((flag) => html`<span class="flag">! ${safe(flag)}</span> `)}<span class="quiet">${name === "flags" ? "flags of the verifier" : "suspect"}</span></p>`)}
  ${found.dropped?.length > 0 && html`<section class="notice"><h2><span class="flag">! ${found.dropped_count ?? found.dropped.length} dropped paths</span> <span class="quiet">changes that the grading did not take</span></h2><ul>${found.dropped.map((path) => html`<li><code>${safe(path)}</code></li>`)}</ul></section>`}`;

/** @param {{id: string, data: any}} props */
export function Verifier({ id, data }) {
  const { data: found, error } = useData(`/api/t/${encodeURIComponent(id)}/verifier`);
  if (error) return html`<${Problem} error=${error} /><h2>Report</h2><${Tree} of=${data.report} />`;
  if (!found) return html`<${Waiting} />`;
  const output = found.output && asText(found.output).text ? found.output : null;
  const rest = found.rest && Object.keys(found.rest).length ? found.rest : null;
  const sets = Object.keys(found.counts || {}).length;
  const failed = (found.failed || []).map((name) => ({ name, outcome: found.outcomes?.[name] }));
  return html`<div class="verifier">${found.reason && html`<p class="reason">${safe(asText(found.reason).text)}</p>`}
    <${Against} found=${found} />${sets > 0 && html`<${Counts} counts=${found.counts} />`}
    <${Tests} title="failing" names=${failed} kind="fail" sign="✗" open=${true} /><${Tests} title="passing" names=${(found.passed || []).map((name) => ({ name }))} kind="pass" sign="✓" open=${(found.passed || []).length <= 20} />
    ${found.first_failure && html`<h2>First failure</h2><${Lines} of=${found.first_failure} />`}
    ${output && html`<h2>Output</h2><${Lines} of=${output} />`}
    ${rest && html`<h2>Other keys of the report</h2><${Tree} of=${rest} />`}
    ${!found.reason && !sets && !failed.length && !output && !rest && html`<p class="empty">The verifier reported nothing.</p>`}</div>`;
}

// --- attempts and events ---------------------------------------------------------------------

/** @param {{failure: any}} props */
const Failure = ({ failure }) => html`<p class="fail"><b>✗ ${safe(failure.cause)}${failure.stage ? ` at ${safe(failure.stage)}` : ""}</b> ${safe(failure.type)}</p><${Lines} of=${failure.message || ""} />`;

/** @param {{attempt: any}} props */
const Attempt = ({ attempt }) => html`<section class="panel full"><h2>Attempt ${attempt.attempt}</h2>${attempt.failure && html`<${Failure} failure=${attempt.failure} />`}
  <${Facts} of=${[["worker", safe(attempt.worker)], ["host", safe(attempt.host)], ["begun", when(attempt.begun_at)], ["messages", attempt.message_count], ...(attempt.stages || []).map(({ stage, seconds: spent }) => [safe(stage), seconds(spent)])]} />
  ${(attempt.messages || []).length > 0 && html`<details><summary>last messages</summary><${Tree} of=${attempt.messages} /></details>`}
  ${(attempt.events || []).length > 0 && html`<details><summary>last events</summary><${Tree} of=${attempt.events} /></details>`}</section>`;

/** @param {{event: any}} props */
const Event = ({ event }) => html`<tr><th scope="row">${Number.isInteger(event.at) ? html`<a href=${link({ tab: null, m: event.at })}>${safe(event.event)}</a>` : safe(event.event)}</th><td class="n">${Number.isInteger(event.turn) ? event.turn + 1 : ""}</td>
  <td class="grow">${event.details && Object.keys(event.details).length ? html`<${Tree} of=${event.details} depth=${1} />` : ""}</td></tr>`;

/** @param {{data: any}} props */
export function Attempts({ data }) {
  const { attempts = [], events = [], head = {} } = data;
  return html`${head.failure && html`<section class="panel full"><h2>Last attempt</h2><${Failure} failure=${head.failure} /></section>`}
    ${attempts.map((attempt) => html`<${Attempt} key=${attempt.attempt} attempt=${attempt} />`)}
    ${!attempts.length && !head.failure && html`<p class="pass">✓ The first attempt succeeded.</p>`}
    <h2>Events <span class="quiet">${events.length}</span></h2>
    ${events.length ? html`<div class="scroll" role="region" aria-label="events" tabindex="0"><table class="rows upper"><caption class="unseen">events</caption><thead><tr><th scope="col">event</th><th scope="col" class="n">turn</th><th scope="col" class="grow">details</th></tr></thead>
      <tbody>${events.slice(0, 2000).map((event) => html`<${Event} event=${event} />`)}</tbody></table></div>` : html`<p class="quiet">None.</p>`}`;
}

/** @param {{id: string, data: any}} props */
export const Record = ({ id, data }) => html`<p class="tools"><${Command} line=${`hermes-queue show ${id}`} /> <a class="button" href=${`/api/t/${encodeURIComponent(id)}/record`} download>Download the whole record as JSON</a></p>
  <h2>Head</h2><${Tree} of=${data.head} /><h2>Row of the index</h2><${Tree} of=${data.row} /><h2>Report</h2><${Tree} of=${data.report} />`;
