/** One run, or all trajectories: numbers, the distribution that filters, and the list. */
import { go, html, link, pathOf, query, useAddress, useData } from "../core.js";
import { useLive } from "../live.js";
import { Bar, Facts, Problem, Waiting, ago, count, entitle, money, safe, score, seconds } from "../show.js";
import { Tabs } from "./tabs.js";
import { Filter, OF_RUN, Trajectories, both, condition } from "./list.js";

// --- the distribution --------------------------------------------------------------------

const OF = ["score", "turns", "seconds", "tokens", "cost"];
/** @param {number} value @param {string} of */
const edge = (value, of) => (of === "seconds" ? seconds(value) : of === "cost" ? money(value) : count(Number(value.toFixed(3))));

/** Bars that filter. @param {{scope: string}} props */
export function Histogram({ scope }) {
  const { params } = useAddress();
  const of = OF.includes(params.get("of")) ? params.get("of") : "score";
  const q = params.get("q") || "";
  const { data, error } = useData(query("/api/histogram", { q: both(scope, q), of }));
  const bins = data?.of === of || !data?.of ? data?.bins || [] : [];
  const most = Math.max(1, ...bins.map((bin) => bin.count));
  const choose = html`<label class="unlabelled"><span class="unseen">distribution of</span><select value=${of} onChange=${(event) => go(link({ of: event.target.value === "score" ? null : event.target.value }), true)}>
    ${OF.map((name) => html`<option value=${name}>${name}</option>`)}</select></label>`;
  const height = (bin) => ({ height: `${bin.count ? Math.max(4, (bin.count / most) * 100) : 0}%` });
  const filter = (bin) => link({ q: both(q, bin.q), after: null, upto: null });
  if (error?.status === 400) return null; // the list says what is wrong with the filter
  return html`<section class="panel" aria-labelledby="dist"><h2 id="dist">${choose}</h2>
    ${error ? html`<${Problem} error=${error} />` : html`<ol class="histogram">${bins.map((bin) => html`<li>
      <a href=${filter(bin)} class=${of === "score" ? (bin.from >= 0.999 || bin.to > 1 ? "pass" : bin.to <= 0.101 && bin.from <= 0 ? "fail" : "part") : ""}
        title=${`${bin.count}: ${of} from ${edge(bin.from, of)} to ${edge(bin.to, of)}`}>
        <span class="amount">${bin.count || ""}</span><span class="column" style=${height(bin)}></span></a>
      <span class="edge">${edge(bin.from, of)}</span></li>`)}</ol>`}
    ${data?.unmeasured ? html`<p class="quiet">${data.unmeasured} not measured</p>` : ""}</section>`;
}

// --- the numbers of a run ----------------------------------------------------------------

/** What Redis says of the run now: by the stream, else by the answer. @param {string} id @param {any} data */
function useLedger(id, data) {
  const { overview } = useLive();
  const run = (overview?.runs || []).find((each) => each.info?.run_id === id);
  const known = data?.ledger ? { ...data.ledger, done: data.ledger.total - data.ledger.queued - data.ledger.running } : null;
  if (!run) return known;
  const { counters, state, reason, policy_version, accounts } = run.info;
  return { ...known, state, state_reason: reason, total: counters.total, queued: counters.queued, running: counters.running,
    done: counters.total - counters.queued - counters.running, failed: counters.failed, policy_version, spent_usd: accounts?.usd?.spent ?? known?.spent_usd, budget_usd: accounts?.usd?.limit ?? known?.budget_usd, eta_s: run.eta_s, per_hour: run.per_hour };
}

/** @param {{of: any}} props */
function Progress({ of }) {
  const share = of.total ? of.done / of.total : 0;
  return html`<div class="progress"><${Bar} of=${share} kind="long" /> <b>${of.done}/${of.total}</b>
    <span>${of.running} running</span> <span>${of.queued} waiting</span>
    <span class=${of.failed ? "fail" : "quiet"}>${of.failed} failed</span>
    ${of.spent_usd || of.budget_usd ? html`<span>spent ${money(of.spent_usd || 0)}${of.budget_usd ? ` of ${money(of.budget_usd)}` : ""}</span>` : ""}
    ${of.eta_s ? html`<span class="quiet">about ${seconds(of.eta_s)} to go</span>` : ""}</div>`;
}

/** @param {{data: any}} props */
const Stages = ({ data }) => html`<section class="panel" aria-labelledby="stages"><h2 id="stages">stages <span class="quiet">median, 90 %</span></h2>
  <table class="small"><tbody>${Object.entries(data.stages || {}).map(([name, { p50, p90 }]) => html`<tr><th scope="row">${safe(name)}</th><td class="n">${seconds(p50)}</td><td class="n quiet">${seconds(p90)}</td></tr>`)}</tbody></table></section>`;

/** What the run got for the time of its slots, and where that went. @param {{of: any}} props */
function Goodput({ of }) {
  if (!of) return null;
  const per = [`${figure(of.per_slot_hour)} scored per slot-hour`, of.per_usd != null && `${figure(of.per_usd)} per $`].filter(Boolean);
  return html`<section class="panel" aria-labelledby="goodput"><h2 id="goodput">slot-time <span class="quiet">${seconds(of.leased_s)} leased</span></h2>
    <p class="quiet">${per.join(", ")}</p><table class="small"><tbody>${of.accounts.slice(0, 8).map((each) => html`<tr>
    <th scope="row">${each.is_lost ? "lost: " : ""}${safe(each.name)}</th><td><${Bar} of=${each.seconds / of.leased_s} kind=${each.is_lost ? "fail" : ""} /></td>
    <td class="n">${seconds(each.seconds)}</td></tr>`)}</tbody></table></section>`;
}
const figure = (/** @type {number} */ n) => String(Number(n.toPrecision(3)));

/** Numbers that filter when pressed. @param {{title: string, name: string, of: any[]}} props */
function Shares({ title, name, of }) {
  const { params } = useAddress();
  if (!of?.length) return null;
  const most = Math.max(1, ...of.map((each) => each.count));
  const filter = (each) => link({ q: both(params.get("q"), name === "cause" ? both(condition("cause", each.cause), each.stage && condition("stage", each.stage)) : condition(name, each.name)), after: null, upto: null });
  return html`<section class="panel"><h2>${title}</h2><table class="small"><tbody>${of.slice(0, 8).map((each) => html`<tr>
    <th scope="row"><a href=${filter(each)}>${safe(each.name ?? `${each.cause}${each.stage ? ` at ${each.stage}` : ""}`)}</a></th>
    <td><${Bar} of=${each.count / most} kind=${name === "cause" ? "fail" : ""} /></td><td class="n">${count(each.count)}</td>
    ${"mean" in each ? html`<td class="n" title="mean score">${score(each.mean)}</td>` : ""}</tr>`)}</tbody></table></section>`;
}

// --- tabs ----------------------------------------------------------------------------------

const SORTS = [["created", "created"], ["mean", "mean"], ["std", "spread"], ["count", "samples"]];

/** @param {{scope: string}} props */
function Groups({ scope }) {
  const { params } = useAddress();
  const [order, after] = [params.get("gsort") || "-created", params.getAll("after")];
  const q = both(scope, params.get("q"));
  const { data, error } = useData(query("/api/groups", { q, sort: order, after: after.at(-1), upto: params.get("upto"), limit: 100 }));
  const heading = (sort, title) => {
    const now = order === sort ? "ascending" : order === "-" + sort ? "descending" : "none";
    return html`<th scope="col" class="n" aria-sort=${now}><a href=${link({ gsort: now === "descending" ? sort : "-" + sort, after: null })}>${title}<span aria-hidden="true">${{ none: "", ascending: " ↑", descending: " ↓" }[now]}</span></a></th>`;
  };
  return html`<${Filter} scope=${scope} example=${scope ? OF_RUN : undefined} error=${error?.status === 400 ? error : null} />
    ${error && error.status !== 400 ? html`<${Problem} error=${error} />` : !data ? html`<${Waiting} />` : html`
    <p class="pages"><span aria-live="polite">${count(data.count)} groups</span> ${after.length > 0 && html`<a href=${link({ after: after.slice(0, -1) })}>‹ previous</a>`}
      ${data.next && html`<a href=${link({ after: [...after, data.next], upto: data.upto })}>next ›</a>`}</p>
    <div class="scroll" role="region" aria-label="groups" tabindex="0"><table class="rows"><caption class="unseen">groups</caption><thead><tr><th scope="col">instance</th>
      ${heading("mean", "mean")}${heading("std", "spread")}${heading("count", "samples")}<th scope="col" class="n">failed</th><th scope="col" class="n">flagged</th><th scope="col" class="grow"><span class="unseen">mean as a bar</span></th>${heading("created", "age")}</tr></thead>
    <tbody>${data.groups.map((group) => html`<tr key=${group.group}><th scope="row"><a data-nav href=${pathOf("group", group.group)}>${!scope && html`<span class="quiet">${safe(group.run)} </span>`}${safe(group.instance)}</a></th>
      <td class="n"><b>${score(group.mean)}</b></td><td class="n">${score(group.std)}</td><td class="n">${group.count}${group.size ? html`<span class="quiet">/${group.size}</span>` : ""}</td>
      <td class=${"n " + (group.failed ? "fail" : "quiet")}>${group.failed}</td><td class="n">${group.flagged ? html`<span class="flag">! ${group.flagged}</span>` : ""}</td>
      <td class="grow"><${Bar} of=${group.mean} kind="good" /></td><td class="n">${ago(group.created)}</td></tr>`)}</tbody></table></div>`}`;
}

const TABS = [["", "Trajectories"], ["groups", "Groups"], ["running", "Running"], ["failed", "Failed"]];

/** What runs now, as the workers say it. @param {{run: string|null}} props */
function Running({ run }) {
  const { overview } = useLive();
  const rows = (overview?.oldest || []).filter((each) => !run || String(each.trajectory_id || "").startsWith(`${run}.`));
  if (!rows.length) return html`<p class="empty">${overview ? "Workers name their longest running trajectories here; none is of this run." : "Nothing is followed: Redis is not a source, or the picture is held."}</p>`;
  return html`<div class="scroll" role="region" aria-label="running" tabindex="0"><table class="rows"><caption class="unseen">longest running trajectories</caption>
    <thead><tr><th scope="col" class="n">age</th><th scope="col">stage</th><th scope="col" class="n">turns</th><th scope="col" class="n">try</th><th scope="col">worker</th><th scope="col" class="grow">trajectory</th></tr></thead>
    <tbody>${rows.map((each) => html`<tr key=${each.trajectory_id}><td class="n">${seconds(each.age_s)}</td><td>${safe(each.stage)}</td><td class="n">${each.turns}</td><td class="n">${each.attempt}</td><td>${safe(each.worker)}</td><th scope="row" class="grow"><a data-nav href=${pathOf("t", String(each.trajectory_id))}>${safe(each.label || each.trajectory_id)}</a></th></tr>`)}</tbody></table></div>`;
}

// --- the page ------------------------------------------------------------------------------

/** Limits of a run, of which any may be set. */
const BUDGETS = [
  { name: "budget_usd", title: "US dollars", hint: "a number, or none", wanted: true },
  { name: "budget_tokens", title: "Tokens", hint: "a number, or none", wanted: true },
  { name: "budget_wall_s", title: "Seconds from its beginning", hint: "a number, or none", wanted: true },
  { name: "budget_slot_hours", title: "Slot-hours", hint: "a number, or none", wanted: true },
];

/** What may be done with a run in this state. @param {string} run @param {any} ledger @param {any[]} failures by cause and stage */
export function runActions(run, ledger, failures) {
  if (!ledger) return [];
  const args = { run };
  const causes = [...new Set(failures.map((each) => each.cause))];
  const cause = { name: "cause", title: "Those that failed of", of: [["", "any cause"], ...causes.map((each) => [each, each])] };
  const retry = ledger.failed || failures.length ? [{ name: "run_retry", title: "Retry failed…", args, fields: [cause] }] : [];
  if (!["active", "paused"].includes(ledger.state)) return [...retry, { name: "run_purge", title: "Purge…", args, confirm: run, danger: true }];
  return [
    ledger.state === "paused" ? { name: "run_resume", title: "Resume", args } : { name: "run_pause", title: "Pause", args },
    ...retry,
    { name: "run_budget", title: "Budget…", args, fields: BUDGETS },
    { name: "run_cancel", title: "Cancel…", args, confirm: run, danger: true },
  ];
}

/** A run, and below it its tabs unless there is no such run. @param {{run: string, session: any, children?: any}} props */
function Head({ run, session, children }) {
  const { data, error, again } = useData(`/api/runs/${encodeURIComponent(run)}`);
  const ledger = useLedger(run, data);
  entitle(run);
  return html`<div class="title"><h1 tabindex="-1">${safe(run)}</h1>
      ${ledger && html`<span class=${"tag " + ledger.state}>${ledger.state}${ledger.state_reason ? `: ${safe(ledger.state_reason)}` : ""}</span>`}
      <span class="grow"></span><${session.Actions} of=${runActions(run, ledger, data?.failures || [])} done=${again} /></div>
    ${error && html`<${Problem} error=${error} />`}
    ${ledger && html`<${Progress} of=${ledger} />`}
    ${data && html`<${Facts} of=${[["mean score", html`<b>${score(data.mean)}</b>`], ["trajectories", count(data.count)], ["scored", count(data.scored)], ["failed", data.failed],
      ["cost", money(data.cost)], ["policy", ledger?.policy_version], ["env", safe((data.envs || []).map((each) => each.name).join(", "))], ["model", safe((data.models || []).map((each) => each.name).join(", "))], ["begun", data.created ? `${ago(data.created)} ago` : ""]]} />
    <div class="panels"><${Histogram} scope=${condition("run", run)} /><${Shares} title="policy" name="policy" of=${data.policies} />
      <${Shares} title="failed" name="cause" of=${data.failures} /><${Stages} data=${data} /><${Goodput} of=${data.goodput} />
      ${(data.envs || []).length > 1 && html`<${Shares} title="env" name="env" of=${data.envs} />`}</div>`}
    ${(error?.status !== 404 || ledger) && children}`;
}

/** @param {{session: any, ids: string[]}} props */
export function Page({ session, ids }) {
  const { params } = useAddress();
  const run = ids[0] || null;
  const tab = params.get("tab") || "";
  const scope = run ? condition("run", run) : "";
  if (!run) entitle("Trajectories");
  const list = html`<${Tabs} tabs=${TABS.filter(([id]) => session.live || id !== "running")} tab=${tab} />
    ${tab === "groups" ? html`<${Groups} scope=${scope} />` : tab === "running" ? html`<${Running} run=${run} />`
      : html`<${Trajectories} key=${tab} scope=${scope} extra=${tab === "failed" ? "status:failed" : ""} />`}`;
  return html`<main id="main"><p class="crumbs"><a href="/" aria-keyshortcuts="u">runs</a> ›</p>
    ${run ? html`<${Head} run=${run} session=${session}>${list}<//>` : html`<h1 tabindex="-1">Trajectories <span class="quiet">of all runs</span></h1><div class="panels"><${Histogram} scope="" /></div>${list}`}
  </main>`;
}
