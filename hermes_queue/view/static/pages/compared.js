/**
 * Samples of a group side by side, as `/api/groups/G/compare` aligned them:
 * `{"samples": [id], "reference": id, "steps": [{"equal": 5} or {"cells": [TEXT or null], "passing":
 * [3, 3], "failing": [1, 4]}], "tests": [{"name", "outcomes": ["passed"|"failed"|null]}],
 * "tokens": [{"sample": id, "at": 412}]}`, cells in the order of `samples`.
 */
import { html, pathOf } from "../core.js";
import { Marked, asText, count, safe, stateOf } from "../show.js";

/** @param {{samples: any[], reference: string}} props */
const Heads = ({ samples, reference }) => html`<thead><tr><th scope="col">step</th>${samples.map((row) => {
  const { sign, kind } = stateOf(row);
  return html`<th scope="col"><a href=${pathOf("t", row.id)}>#${row.sample} <span class=${"state " + kind}>${sign}</span></a>${row.id === reference ? html` <span class="quiet">ref</span>` : ""}</th>`;
})}<th scope="col">in</th></tr></thead>`;

/** @param {{step: any, at: number, width: number}} props */
function Step({ step, at, width }) {
  if (step.equal) return html`<tr class="equal"><th scope="row">${at}</th><td colspan=${width + 1}>${step.equal} equal</td></tr>`;
  const all = (step.cells || []).map((cell) => (cell ? asText(cell).text : null));
  const shared = all.length > 1 && all.every((text) => text !== null && text === all[0]);
  return html`<tr><th scope="row">${at}</th>${shared ? html`<td colspan=${width} class="shared"><code><${Marked} of=${step.cells[0]} /></code></td>`
    : step.cells.map((cell) => html`<td>${cell ? html`<code><${Marked} of=${cell} /></code>` : html`<span class="quiet">–</span>`}</td>`)}
    <td class="quiet">${step.passing && html`<span class="pass">✓ ${step.passing.join("/")}</span> `}${step.failing && html`<span class="fail">✗ ${step.failing.join("/")}</span>`}</td></tr>`;
}

const OUTCOMES = { passed: ["✓", "pass"], failed: ["✗", "fail"] };

/** @param {{tests: any[], samples: any[]}} props */
const Tests = ({ tests, samples }) => html`<h2>Tests</h2><div class="scroll" role="region" aria-label="tests" tabindex="0"><table class="compare"><caption class="unseen">tests by sample</caption>
  <thead><tr><th scope="col">test</th>${samples.map((row) => html`<th scope="col">#${row.sample}</th>`)}</tr></thead>
  <tbody>${tests.map((test) => html`<tr><th scope="row"><code>${safe(test.name)}</code></th>${test.outcomes.map((outcome) => {
    const [sign, kind] = OUTCOMES[outcome] || ["·", "quiet"];
    return html`<td class=${kind}>${sign}<span class="unseen">${outcome || "not reported"}</span></td>`;
  })}</tr>`)}</tbody></table></div>`;

/** @param {{data: any, rows: any[]}} props */
export function Compared({ data, rows }) {
  const samples = (data.samples || []).map((id) => rows.find((row) => row.id === id)).filter(Boolean);
  if (!samples.length) return null;
  let at = 1;
  return html`<h2>Actions</h2><div class="scroll" role="region" aria-label="actions" tabindex="0"><table class="compare"><caption class="unseen">actions, aligned</caption><${Heads} samples=${samples} reference=${data.reference} />
      <tbody>${(data.steps || []).map((step) => {
        const number = at;
        at += step.equal || 1;
        return html`<${Step} key=${number} step=${step} at=${number} width=${samples.length} />`;
      })}</tbody></table></div>
    ${data.tests?.length > 0 && html`<${Tests} tests=${data.tests} samples=${samples} />`}
    ${data.tokens?.length > 0 && html`<h2>Tokens</h2><p>First different token: ${data.tokens.map((each) => `#${rows.find((row) => row.id === each.sample)?.sample ?? "?"} at ${count(each.at)}`).join(", ")}</p>`}`;
}
