/** All samples of one item: their table, and, where the server aligns them, side by side. */
import { html, pathOf, query, useAddress, useData } from "../core.js";
import { Facts, Problem, Waiting, ago, count, entitle, safe, score, stateOf } from "../show.js";
import { Compared } from "./compared.js";
import { Table, condition } from "./list.js";

/** Mean and population deviation. @param {number[]} values */
export function spread(values) {
  if (!values.length) return { mean: null, std: null };
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  return { mean, std: Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length) };
}

/** @param {{rows: any[]}} props */
const Signs = ({ rows }) => html`<span class="signs">${rows.map((row) => {
  const { sign, kind, says } = stateOf(row);
  return html`<a class=${"state " + kind} href=${pathOf("t", row.id)} title=${`#${row.sample}: ${says}`}>${sign}</a>`;
})}</span>`;

/** @param {{ids: string[]}} props */
export function Page({ ids }) {
  const [group] = ids;
  const path = `/api/groups/${encodeURIComponent(group)}`;
  const { data, error } = useData(path);
  const { params } = useAddress();
  const compared = useData(data && data.rows.length > 1 ? query(`${path}/compare`, { reference: params.get("ref") }) : null);
  if (error) return html`<main id="main"><h1 tabindex="-1">${safe(group)}</h1><${Problem} error=${error} /><p><a href="/" aria-keyshortcuts="u">All runs</a></p></main>`;
  if (!data) return html`<main id="main"><h1 tabindex="-1" class="quiet">${safe(group)}</h1><${Waiting} /></main>`;
  const rows = data.rows;
  const [first] = rows;
  const own = rows.filter((row) => !row.extra);
  const scores = own.map((row) => row.score).filter((value) => value !== null);
  const { mean, std } = spread(scores);
  entitle(first?.instance || group);
  const instance = first?.instance || group;
  return html`<main id="main"><p class="crumbs"><a href="/">runs</a> › ${first && html`<a href=${pathOf("run", first.run)} aria-keyshortcuts="u" title="up (u)">${safe(first.run)}</a> ›`}</p>
    <div class="title"><h1 tabindex="-1">${safe(instance)}</h1><${Signs} rows=${rows} /></div>
    <${Facts} of=${[["samples", own.length], ["extras", rows.length - own.length || ""], ["mean", html`<b>${score(mean)}</b>`], ["spread", score(std)], ["failed", own.length - scores.length || ""], ["env", safe(first?.env)],
      ["tokens", count(rows.reduce((sum, row) => sum + (row.completion_tokens || 0), 0))], ["age", first && ago(first.finished)]]} />
    <${Table} rows=${rows} caption="samples of the group" open=${{ q: condition("group", group), sort: "sample" }} plain=${true} only=${true} />
    ${compared.data && html`<${Compared} data=${compared.data} path=${`${path}/patches`} />`}
    ${compared.error && ![404, 405, 501].includes(compared.error.status) && html`<${Problem} error=${compared.error} />`}</main>`;
}
