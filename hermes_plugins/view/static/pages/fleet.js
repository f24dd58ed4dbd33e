/** The first page: all runs, and what the deployment does now. */
import { html, link, pathOf, useData } from "../core.js";
import { useLive } from "../live.js";
import { Bar, Problem, Waiting, ago, count, entitle, money, safe, score, seconds } from "../show.js";

/** Runs of the index and those that only Redis knows, in one list. @param {any} overview @param {any[]} known */
function joined(overview, known) {
  const live = new Map((overview?.runs || []).map((each) => [each.info.run_id, each]));
  const runs = known.map((run) => ({ ...run, live: live.get(run.run) }));
  for (const run of known) live.delete(run.run);
  const fresh = [...live].map(([run, each]) => ({ run, count: 0, scored: 0, failed: 0, mean: null, cost: null, created: each.info.created, live: each }));
  const rank = ({ live: each, ledger }) => ["active", "paused"].includes(each?.info.state || ledger?.state) ? 0 : 1;
  return [...fresh, ...runs].sort((a, b) => rank(a) - rank(b) || (b.finished || b.created || 0) - (a.finished || a.created || 0));
}

/** The counters of a run, whoever told them last. @param {any} run */
function counters(run) {
  const info = run.live?.info;
  if (!info) return run.ledger && { ...run.ledger, done: run.ledger.total - run.ledger.queued - run.ledger.running };
  const { total, queued, running, failed } = info.counters;
  return { state: info.state, state_reason: info.reason, total, queued, running, failed, done: total - queued - running };
}

/** @param {{run: any, session: any}} props */
function Run({ run, session }) {
  const now = counters(run);
  const actions = now?.state === "active" ? [{ name: "run_pause", title: "Pause", args: { run: run.run } }]
    : now?.state === "paused" ? [{ name: "run_resume", title: "Resume", args: { run: run.run } }] : [];
  return html`<tr><th scope="row"><a data-nav href=${pathOf("run", run.run)}>${safe(run.run)}</a></th>
    <td>${now ? html`<span class=${"tag " + now.state} title=${safe(now.state_reason)}>${now.state}</span>` : html`<span class="quiet">in files</span>`}</td>
    <td>${now?.total ? html`<${Bar} of=${now.done / now.total} /> ${now.done}/${now.total}` : html`${count(run.count)}`}</td>
    <td class="n"><b>${score(run.mean)}</b></td><td class=${"n " + (run.failed || now?.failed ? "fail" : "quiet")}>${now?.failed ?? run.failed}</td>
    <td class="n wide">${now?.running || ""}</td><td class="n wide">${run.live?.per_hour ? run.live.per_hour.toFixed(0) : ""}</td>
    <td class="n wide">${run.live?.eta_s ? seconds(run.live.eta_s) : ""}</td><td class="n wide">${money(run.cost)}</td><td class="n">${run.finished ? ago(run.finished) : ""}</td>
    <td><${session.Actions} of=${actions} /></td></tr>`;
}

/** @param {{session: any}} props */
function Runs({ session }) {
  const { overview } = useLive();
  const { data, error } = useData("/api/runs");
  if (error) return html`<${Problem} error=${error} />`;
  if (!data) return html`<${Waiting} />`;
  const runs = joined(overview, data.runs);
  const live = session.live;
  const problems = (data.problems || []).map((problem) => html`<p class="warn">! ${safe(problem)}</p>`);
  return html`<section aria-labelledby="runs"><h2 id="runs">Runs <span class="quiet">${runs.length}</span></h2>${problems}
    ${!runs.length && html`<p class="empty">${live ? html`Nothing has been published yet. A producer begins a run, for instance <code>python -m producers.gsm8k --items 8</code>.` : data.indexing ? "Still reading." : "The sources hold no trajectory."}</p>`}
    ${runs.length > 0 && html`<div class="scroll" role="region" aria-label="runs" tabindex="0"><table class="rows"><caption class="unseen">runs</caption>
    <thead><tr><th scope="col">run</th><th scope="col">state</th><th scope="col">${live ? "done" : "trajectories"}</th><th scope="col" class="n">score</th><th scope="col" class="n">failed</th>
      <th scope="col" class="n wide">${live ? "active" : ""}</th><th scope="col" class="n wide">${live ? "per h" : ""}</th><th scope="col" class="n wide">${live ? "to go" : ""}</th><th scope="col" class="n wide">cost</th><th scope="col" class="n" title="when its newest trajectory ended">newest</th><th scope="col"><span class="unseen">actions</span></th></tr></thead>
    <tbody>${runs.map((run) => html`<${Run} key=${run.run} run=${run} session=${session} />`)}</tbody></table></div>`}</section>`;
}

/** The breaker that holds jobs of a lane: its own, else the first of an endpoint. @param {any} lane */
const holding = (lane) => [lane.breaker, ...(lane.endpoints || [])].find((each) => each && each.state !== "closed");

/** @param {any} lane */
function laneState(lane) {
  const held = holding(lane);
  if (held) {
    const what = held.endpoint ? `without ${safe(held.endpoint)}` : held.state === "open" ? "paused" : "probing";
    return html`<span class="warn">! ${what} (${safe(held.cause)})</span>`;
  }
  return lane.depth && !lane.workers ? html`<span class="fail">✗ no worker serves it</span>` : html`<span class="pass">✓</span>`;
}

/** @param {{of: any[], session: any}} props */
const Lanes = ({ of, session }) => html`<section class="panel" aria-labelledby="lanes"><h2 id="lanes">Lanes</h2><div class="scroll" role="region" aria-label="table of lanes" tabindex="0"><table class="small"><thead><tr><th scope="col">lane</th><th scope="col" class="n">waiting</th><th scope="col" class="n">oldest</th><th scope="col" class="n">active</th><th scope="col" class="n">workers</th><th scope="col">state</th></tr></thead>
  <tbody>${of.map((lane) => html`<tr key=${lane.name}><th scope="row">${safe(lane.name)}</th><td class="n">${count(lane.depth)}</td><td class="n">${lane.oldest_s === null ? "" : seconds(lane.oldest_s)}</td><td class="n">${lane.running}</td><td class="n">${lane.workers}</td>
    <td>${laneState(lane)} <${session.Actions} of=${[holding(lane) && { name: "lane_resume", title: "Free", args: { lane: lane.name } }, lane.breaker?.state !== "open" && { name: "lane_pause", title: "Hold", args: { lane: lane.name } }].filter(Boolean)} /></td></tr>
    ${holding(lane)?.message && html`<tr><td></td><td colspan="5" class="warn said">${safe(holding(lane).message)}</td></tr>`}`)}</tbody></table></div></section>`;

/** @param {any} worker */
const stages = (worker) => Object.entries(worker.stages || {}).sort((a, b) => b[1] - a[1]).map(([name, n]) => `${safe(name)} ${n}`).join(" · ");

/** What a worker can be set to. */
const SIZES = [
  { name: "concurrency", title: "Trajectories at a time", hint: "a whole number", wanted: true },
  { name: "slots", title: "Slots of its sandbox backend", hint: "the same number" },
];

/** @param {{worker: any, session: any}} props */
function Worker({ worker, session }) {
  const name = worker.name || worker.owner;
  const args = { worker: name };
  const actions = [
    worker.intake === "open" ? { name: "worker_pause", title: "Pause", args } : { name: "worker_resume", title: "Resume", args },
    { name: "worker_size", title: "Size…", args, fields: SIZES },
    { name: "worker_drain", title: "Drain…", args, danger: true },
  ];
  return html`<tr><th scope="row">${safe(name)}</th><td><${Bar} of=${worker.slots ? worker.running / worker.slots : 0} /> ${worker.running || 0}/${worker.slots || 0}</td>
    <td>${stages(worker)}</td><td class="n">${worker.sandboxes || 0}</td><td class=${"n " + (worker.silent_s > 25 ? "warn" : "quiet")}>${seconds(worker.silent_s)}</td>
    <td>${worker.intake === "open" ? html`<span class="pass">✓ open</span>` : html`<span class="warn">! ${safe(worker.intake)}</span>`}</td><td><${session.Actions} of=${actions} /></td></tr>`;
}

/** @param {{of: any[], session: any}} props */
const Workers = ({ of, session }) => html`<section class="panel wider" aria-labelledby="workers"><h2 id="workers">Workers <span class="quiet">${of.length}</span></h2>
  ${of.length ? html`<div class="scroll" role="region" aria-label="workers" tabindex="0"><table class="small"><thead><tr><th scope="col">worker</th><th scope="col">slots</th><th scope="col">stages</th><th scope="col" class="n">boxes</th><th scope="col" class="n">beat</th><th scope="col">intake</th><th scope="col"><span class="unseen">actions</span></th></tr></thead>
    <tbody>${of.map((worker) => html`<${Worker} key=${worker.owner || worker.name} worker=${worker} session=${session} />`)}</tbody></table></div>` : html`<p class="warn">! no live workers</p>`}</section>`;

/** Failures of the last hour by cause. @param {{lately: any}} props */
function Failures({ lately }) {
  const rows = Object.entries(lately?.attempts || {}).filter(([cause]) => cause).sort((a, b) => b[1] - a[1]);
  const all = Object.values(lately?.attempts || {}).reduce((sum, n) => sum + n, 0);
  const most = Math.max(1, ...rows.map(([, n]) => n));
  return html`<section class="panel" aria-labelledby="failures"><h2 id="failures">Failed attempts <span class="quiet">${seconds(lately?.window_s)}, of ${count(all)}</span></h2>
    ${rows.length ? html`<table class="small"><tbody>${rows.map(([cause, n]) => html`<tr><th scope="row"><a href=${link({ q: `cause:${cause}` }, "/all")}>${safe(cause)}</a></th><td><${Bar} of=${n / most} kind="fail" /></td><td class="n">${n}</td></tr>`)}</tbody></table>` : html`<p class="pass">✓ none</p>`}</section>`;
}

/** @param {{stream: any}} props */
const Results = ({ stream }) => html`<section class="panel" aria-labelledby="results"><h2 id="results">Results <span class="quiet">${count(stream?.groups)} groups</span></h2><table class="small"><thead><tr><th scope="col">reader</th><th scope="col" class="n">behind</th><th scope="col" class="n">pending</th></tr></thead>
  <tbody>${(stream?.readers || []).map((reader) => html`<tr key=${reader.name}><th scope="row">${safe(reader.name)}</th><td class=${"n " + (reader.behind ? "warn" : "")}>${reader.behind}</td><td class="n">${reader.pending}</td></tr>`)}</tbody></table></section>`;

/** @param {{of: any[]}} props */
const Slowest = ({ of }) => html`<section class="panel" aria-labelledby="slowest"><h2 id="slowest">Slowest</h2>${of.length ? html`<table class="small"><tbody>${of.slice(0, 8).map((each) => html`<tr><td class="n">${seconds(each.age_s)}</td><td>${safe(each.stage)}</td><td class="quiet">turn ${each.turns} try ${each.attempt}</td><th scope="row"><a href=${pathOf("t", String(each.trajectory_id))}>${safe(each.label || each.trajectory_id)}</a></th></tr>`)}</tbody></table>` : html`<p class="quiet">nothing runs</p>`}</section>`;

/** @param {{session: any}} props */
export function Page({ session }) {
  const { overview, state, error } = useLive();
  entitle("Runs");
  return html`<main id="main"><h1 tabindex="-1" class="unseen">hermes-queue</h1>
    ${state === "gone" && html`<${Problem} error=${{ message: error }} />`}
    <${Runs} session=${session} />
    ${session.live && overview && html`<div class="panels"><${Lanes} of=${overview.lanes} session=${session} /><${Failures} lately=${overview.lately} />
      <${Results} stream=${overview.stream} /><${Slowest} of=${overview.oldest || []} /><${Workers} of=${overview.workers} session=${session} /></div>`}
    <p class="quiet sources">Sources: ${(session.sources || []).map((source) => `${source.kind} ${safe(source.name)}`).join(", ") || "none"} · hermes-queue ${session.version}</p>
  </main>`;
}
