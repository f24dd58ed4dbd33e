/** One trajectory: its head, stages, and six views of it. */
import { html, link, pathOf, query, search, useAddress, useData } from "../core.js";
import { Apart, asText, Facts, Flags, Problem, State, Waiting, ago, count, ended, money, safe, score, seconds, when, worked, entitle } from "../show.js";
import { Tabs } from "./tabs.js";
import { policies } from "./list.js";
import { Messages } from "./messages.js";
import { Attempts, Patch, Record, Verifier } from "./details.js";
import { Running } from "./running.js";
import { Tokens } from "./tokens.js";

const TABS = [["", "Messages"], ["patch", "Patch"], ["verifier", "Verifier"], ["tokens", "Tokens"], ["attempts", "Attempts & events"], ["record", "Record"]];

// --- head ----------------------------------------------------------------------------------

/** Share of the width from which on a stage has room for its name. */
const LEGIBLE = 0.075;

/** Where the seconds went. @param {{stages: any[]}} props */
export function Stages({ stages }) {
  const parts = (stages || []).filter((each) => each.seconds > 0);
  const total = parts.reduce((sum, each) => sum + each.seconds, 0);
  if (!total) return null;
  return html`<ol class="stages" aria-label="stages">${parts.map(({ stage, seconds: spent }) => html`<li class=${safe(stage)} style=${{ flexGrow: Math.max(0.02, spent / total) }} title=${`${safe(stage)} ${seconds(spent)}`}>
    <span class=${spent / total < LEGIBLE ? "unseen" : ""}>${safe(stage)} <b>${seconds(spent)}</b></span></li>`)}</ol>`;
}

/** Walking the list one came from. @param {{of: any}} props */
function Neighbours({ of }) {
  if (!of) return null;
  const to = (id) => link({ q: here("q"), sort: here("sort"), upto: here("upto"), tab: here("tab"), hide: here("hide") }, pathOf("t", id));
  const params = new URLSearchParams(search());
  const here = (name) => params.get(name);
  return html`<span class="neighbours">${of.before ? html`<a class="button" rel="prev" href=${to(of.before)} aria-keyshortcuts="[" title="previous in the list ([)">‹</a>` : html`<span class="button off" aria-hidden="true">‹</span>`}
    <span>${of.position} of ${count(of.count)}</span>
    ${of.after ? html`<a class="button" rel="next" href=${to(of.after)} aria-keyshortcuts="]" title="next in the list (])">›</a>` : html`<span class="button off" aria-hidden="true">›</span>`}</span>`;
}

/** The list one came from, or the run's. @param {any} row @param {URLSearchParams} params */
function up(row, params) {
  const q = params.get("q");
  if (!q) return pathOf("run", row.run);
  const own = q.replace(new RegExp(`(^|\\s)run:"?${row.run.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}"?(?=\\s|$)`), "").trim();
  return own.length === q.length ? link({ q, sort: params.get("sort") }, "/all") : link({ q: own, sort: params.get("sort") }, pathOf("run", row.run));
}

/** @param {{data: any, params: URLSearchParams}} props */
export function Head({ data, params }) {
  const row = data.row;
  entitle(`${row.instance} #${row.sample}`);
  return html`<p class="crumbs"><a href="/">runs</a> › <a href=${up(row, params)} aria-keyshortcuts="u" title="up (u)">${safe(row.run)}</a> › <a href=${pathOf("group", row.group)} aria-keyshortcuts="g" title="group (g)">group</a> ›</p>
    <div class="title"><h1 tabindex="-1"><${State} row=${row} /> ${safe(row.instance)} <span class="quiet">#${row.sample}</span></h1>
      <span class=${"score " + (row.score >= 1 ? "pass" : row.score > 0 ? "part" : row.score === null ? "none" : "fail")}>${score(row.score)}</span>
      <span class=${row.cause ? "fail" : ""}>${ended(row)}</span> <${Apart} row=${row} /><${Flags} flags=${row.flags} />
      <span class="grow"></span><a class="button" href=${link({ q: `id:${row.id}`, at: row.id }, "/review")} aria-keyshortcuts="r" title="review (r)">review</a> <${Neighbours} of=${data.neighbours} /></div>
    <${Facts} of=${[["turns", row.turns], ["tokens", `${count(row.prompt_tokens)} in, ${count(row.completion_tokens)} out`], ["cost", money(row.cost)], ["time", seconds(worked(row.seconds))],
      ["calls", row.calls && `${row.calls.attempted}${row.calls.error ? `, ${row.calls.error} failed` : ""}`], ["try", row.attempts], ["policy", policies(row)], ["agent", safe(row.agent)], ["model", safe(row.model)], ["env", safe(row.env)],
      ["age", html`<time title=${when(row.created)}>${ago(row.created)}</time>`]]} />
    <${Stages} stages=${data.stages} />
    ${data.head?.failure && html`<${Failed} failure=${data.head.failure} />`}`;
}

/** Why it has no score. @param {{failure: any}} props */
const Failed = ({ failure }) => html`<p class="problem"><b>${safe(failure.type) || safe(failure.cause)}</b> ${asText(failure.message || "").text.slice(0, 300)} <a href=${link({ tab: "attempts", m: null })}>attempts</a></p>`;

// --- the page ------------------------------------------------------------------------------

/** @param {{tab: string, id: string, data: any, session: any}} props */
function View({ tab, id, data, session }) {
  if (tab === "patch") return html`<${Patch} id=${id} />`;
  if (tab === "verifier") return html`<${Verifier} id=${id} data=${data} />`;
  if (tab === "tokens") return html`<${Tokens} id=${id} data=${data} session=${session} />`;
  if (tab === "attempts") return html`<${Attempts} data=${data} />`;
  if (tab === "record") return html`<${Record} id=${id} data=${data} />`;
  return html`<${Messages} key=${id} id=${id} data=${data} />`;
}

/** @param {{session: any, ids: string[]}} props */
export function Page({ session, ids }) {
  const { params } = useAddress();
  const [id] = ids;
  const tab = params.get("tab") || "";
  const { data, error, again } = useData(query(`/api/t/${encodeURIComponent(id)}`, { q: params.get("q"), sort: params.get("q") && params.get("sort"), upto: params.get("q") && params.get("upto") }));
  if (error?.status === 404 && session.live) return html`<${Running} id=${id} session=${session} missing=${error} ended=${again} />`;
  if (error) return html`<main id="main"><h1 tabindex="-1">${safe(id)}</h1><${Problem} error=${error} /><p><a href="/" aria-keyshortcuts="u">All runs</a></p></main>`;
  if (!data) return html`<main id="main"><h1 tabindex="-1" class="quiet">${safe(id)}</h1><${Waiting} /></main>`;
  return html`<main id="main"><${Head} data=${data} params=${params} />
    <${Tabs} tabs=${TABS} tab=${tab} /><${View} tab=${tab} id=${id} data=${data} session=${session} /></main>`;
}
