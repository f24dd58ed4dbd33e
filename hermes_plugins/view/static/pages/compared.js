/** Samples of a group side by side: what each did, where they part, tests, patch against patch. */
import { go, html, link, pathOf, query, useAddress, useData, useState } from "../core.js";
import { Marked, Problem, Waiting, bytes, count, safe, score, stateOf } from "../show.js";

// --- columns -----------------------------------------------------------------------------------

/** @param {{samples: any[], reference: number}} props */
const Heads = ({ samples, reference }) => html`<thead><tr><th scope="col"><span class="unseen">what</span></th>${samples.map((row, n) => {
  const { sign, kind, says } = stateOf(row);
  return html`<th scope="col"><a href=${pathOf("t", row.id)}>#${row.sample} <span class=${"state " + kind} title=${says}>${sign}</span></a> ${n === reference ? html`<b class="quiet">ref</b>` : html`<a class="quiet" href=${link({ ref: row.id })} title="align the others to this one">align</a>`}</th>`;
})}<th scope="col"><span class="pass">✓</span> <span class="fail">✗</span></th></tr></thead>`;

/** Where a sample parts from the reference. @param {any} parting @param {string} id */
function parts(parting, id) {
  if (!parting) return html`<span class="quiet">–</span>`;
  if (parting.at === null) return "nowhere";
  if (parting.by === "messages") return html`<a href=${link({ m: parting.at }, pathOf("t", id))}>message ${parting.at}</a>`;
  return html`token ${count(parting.at)}${parting.turn === null ? "" : html` <span class="quiet">turn ${parting.turn + 1}</span>`}`;
}

/** The files of a patch, or the sample with the same one. @param {any} patch @param {any[]} samples */
function files(patch, samples) {
  if (!patch) return html`<span class="quiet">–</span>`;
  if (patch.like !== null) return html`= #${samples[patch.like]?.sample}`;
  return patch.files.length ? patch.files.map((name) => html`<code>${safe(name)}</code> `) : bytes(patch.bytes);
}

/** One line of numbers for each sample. @param {{title: string, samples: any[], cell: (sample: any) => any, kind?: string}} props */
const Line = ({ title, samples, cell, kind = "" }) => html`<tr><th scope="row" class="quiet">${title}</th>${samples.map((sample) => html`<td class=${kind}>${cell(sample)}</td>`)}<td></td></tr>`;

/** @param {{samples: any[]}} props */
const Numbers = ({ samples }) => html`<tbody><${Line} title="score" samples=${samples} cell=${(each) => html`<b>${score(each.score)}</b>`} />
  <${Line} title="ended" samples=${samples} cell=${(each) => safe(each.reason || each.stop_reason)} />
  <${Line} title="turns, tokens" samples=${samples} cell=${(each) => `${count(each.turns)}, ${count(each.completion_tokens)}`} />
  <${Line} title="steps, shared with ref" samples=${samples} cell=${(each) => `${each.steps}, ${each.shared}`} />
  <${Line} title="parts from ref at" samples=${samples} cell=${(each) => parts(each.parting, each.id)} />
  <${Line} title="patch" kind="names" samples=${samples} cell=${(each) => files(each.patch, samples)} /></tbody>`;

// --- actions -----------------------------------------------------------------------------------

/** @param {{row: any, at: number, samples: any[], outcomes: any}} props */
const Action = ({ row, at, samples, outcomes }) => html`<tr class=${row.reference ? "" : "aside"}><th scope="row" title=${`${safe(row.name)} ${safe(row.argument)}`}><span class="quiet">${row.reference ? "" : "+ "}</span><b>${safe(row.name)}</b> <code>${safe(row.argument)}</code></th>
  ${row.messages.map((message, n) => html`<td class=${samples[n].parts_at === at ? "parts" : ""}>${message === null ? "" : html`<a href=${link({ m: message }, pathOf("t", samples[n].id))} title=${`#${samples[n].sample}, message ${message}`}>●</a>`}${
    samples[n].parts_at === at ? html`<span class="warn" title="parts from the reference here">◄<span class="unseen">parts here</span></span>` : ""}</td>`)}
  <td class="n"><span class="pass">${row.passing}/${outcomes.passing}</span> <span class="fail">${row.failing}/${outcomes.failing}</span></td></tr>`;

/** Rows that all samples share, as one. @param {{size: number, width: number, open: () => void}} props */
const Fold = ({ size, width, open }) => html`<tr class="equal"><th scope="row"><button class="more" onClick=${open}>${size} equal</button></th><td colspan=${width + 1}>shared by all</td></tr>`;

/** @param {{data: any}} props */
function Actions({ data }) {
  const [open, set] = useState(new Set());
  const starts = new Map(data.folds.filter(([first]) => !open.has(first)).map(([first, last]) => [first, last]));
  const shown = [];
  for (let at = 0; at < data.rows.length; at++) {
    const last = starts.get(at);
    if (last === undefined) shown.push(html`<${Action} key=${at} row=${data.rows[at]} at=${at} samples=${data.samples} outcomes=${data.outcomes} />`);
    else {
      const first = at;
      shown.push(html`<${Fold} key=${at} size=${last - at + 1} width=${data.samples.length} open=${() => set(new Set([...open, first]))} />`);
      at = last;
    }
  }
  return html`<tbody><tr class="section"><th scope="rowgroup" colspan=${data.samples.length + 2}>Actions <span class="quiet">● did it, ◄ parts from the reference; in how many that pass ✓ and fail ✗</span></th></tr>${shown}
    ${data.rows_left_out > 0 && html`<tr><td colspan=${data.samples.length + 2} class="quiet">and ${data.rows_left_out} more</td></tr>`}</tbody>`;
}

// --- tests ---------------------------------------------------------------------------------------

/** @param {string|null} outcome */
function verdict(outcome) {
  if (outcome === null) return html`<span class="quiet" title="not reported">·<span class="unseen">not reported</span></span>`;
  return outcome === "passed" ? html`<span class="pass">✓<span class="unseen">passed</span></span>` : html`<span class="fail" title=${safe(outcome)}>✗<span class="unseen">${safe(outcome)}</span></span>`;
}

/** @param {{tests: any, width: number}} props */
const Tests = ({ tests, width }) => tests.rows.length > 0 && html`<tbody><tr class="section"><th scope="rowgroup" colspan=${width + 2}>Tests <span class="quiet">that any sample fails</span></th></tr>
  ${tests.rows.map((row) => html`<tr key=${row.test}><th scope="row" class="test"><code>${safe(row.test)}</code></th>${row.cells.map((cell) => html`<td>${verdict(cell)}</td>`)}<td class="quiet">${safe(row.set)}</td></tr>`)}
  ${tests.left_out > 0 && html`<tr><td colspan=${width + 2} class="quiet">and ${tests.left_out} more</td></tr>`}</tbody>`;

// --- patch against patch ---------------------------------------------------------------------------

/** @param {{path: string, reference: number, samples: any[]}} props */
function Patches({ path, reference, samples }) {
  const { params } = useAddress();
  const others = samples.map((sample, n) => ({ ...sample, n })).filter(({ n, patch }) => n !== reference && patch);
  const chosen = others.find(({ id }) => id === params.get("patch"));
  const { data, error } = useData(chosen ? query(path, { reference: samples[reference].id, other: chosen.id }) : null);
  if (!samples[reference]?.patch || !others.length) return null;
  const pick = html`<select aria-label="other sample" value=${chosen ? chosen.id : ""} onChange=${(event) => go(link({ patch: event.target.value }), true)}><option value="">…</option>
    ${others.map(({ id, sample }) => html`<option value=${id}>#${sample}</option>`)}</select>`;
  return html`<h2>Patch of #${samples[reference].sample} against ${pick}</h2>
    ${chosen && (error ? html`<${Problem} error=${error} />` : !data ? html`<${Waiting} />` : html`<div class="scroll" role="region" aria-label="patch against patch" tabindex="0"><table class="diff"><caption class="unseen">patch against patch</caption>
      <tbody>${data.lines.map(([sign, text]) => html`<tr class=${{ "+": "added", "-": "removed" }[sign] || ""}><td><pre>${sign === "=" ? " " : sign} <${Marked} of=${text} /></pre></td></tr>`)}</tbody></table></div>
      ${data.cut && html`<p class="warn">! cut</p>`}`)}`;
}

/** @param {{data: any, path: string}} props `path`: of its patches in the API */
export function Compared({ data, path }) {
  const { samples, reference, tests } = data;
  if (!samples.length) return null;
  return html`<h2>Side by side</h2><div class="scroll" role="region" aria-label="side by side" tabindex="0"><table class="compare"><caption class="unseen">samples side by side</caption>
      <${Heads} samples=${samples} reference=${reference} /><${Numbers} samples=${samples} /><${Actions} data=${data} /><${Tests} tests=${tests} width=${samples.length} /></table></div>
    ${data.left_out > 0 && html`<p class="quiet">${data.left_out} further samples are not compared.</p>`}
    <${Patches} path=${path} reference=${reference} samples=${samples} />`;
}
