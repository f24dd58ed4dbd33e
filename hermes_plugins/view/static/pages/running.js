/** A trajectory without a record: what it has said so far, asked of its worker while one looks. */
import { api, html, pathOf, query, useEffect, useState } from "../core.js";
import { useLive } from "../live.js";
import { Facts, Problem, Waiting, entitle, safe } from "../show.js";
import { Messages } from "./messages.js";

const EVERY_MS = 2000;
/** Until the next part of a transcript that does not fit into one answer. */
const SOON_MS = 300;
const OPEN = ["running", "queued"];

/**
 * Its messages, and what is known of it. Nothing is asked while the tab is hidden or the picture held.
 * @param {string} id @param {boolean} held @param {() => void} ended called while it has ended and its record is to come
 */
function useRunning(id, held, ended) {
  const [seen, set] = useState({ id: "", said: null, messages: [], error: null });
  useEffect(() => {
    if (held) return undefined;
    let stopped = false;
    /** @type {any} */
    let timer = 0;
    /** @type {{source: string, attempt: any, next: number, messages: any[]}} */
    let known = { source: "", attempt: null, next: 0, messages: [] };
    const look = async () => {
      let wait = EVERY_MS;
      try {
        const said = document.hidden ? null : await api(query(`/api/t/${encodeURIComponent(id)}/live`, { from: known.next }));
        if (stopped) return;
        const other = said && (said.source !== known.source || said.attempt !== known.attempt || said.total < known.next);
        if (other && known.next) { // another source or attempt numbers its own: from the beginning
          known = { source: said.source, attempt: said.attempt, next: 0, messages: [] };
          wait = said.source ? SOON_MS : EVERY_MS;
          if (!said.source) ended();
        } else if (said) {
          known = { source: said.source, attempt: said.attempt, next: said.next, messages: said.messages.length ? [...known.messages, ...said.messages] : known.messages };
          if (said.next < said.total) wait = SOON_MS;
          set({ id, said, messages: known.messages, error: null });
          if (!OPEN.includes(said.state)) ended();
        }
      } catch (problem) {
        if (stopped) return;
        if (problem.status === 404) return set({ id, said: null, messages: [], error: problem }); // nobody knows it
        if (problem.status !== 429) set((now) => ({ ...now, id, error: problem }));
      }
      timer = setTimeout(look, wait);
    };
    look();
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
  }, [id, held]);
  return seen.id === id ? seen : { id, said: null, messages: [], error: null };
}

/**
 * @param {{id: string, session: any, missing: any, ended: () => void}} props
 *     `missing`: why there is no record; `ended`: look for it again
 */
export function Running({ id, session, missing, ended }) {
  const { state } = useLive();
  const { said, messages, error } = useRunning(id, state === "held", ended);
  entitle(id);
  const run = id.split(".")[0];
  const head = html`<p class="crumbs"><a href="/">runs</a> › <a href=${pathOf("run", run)} aria-keyshortcuts="u" title="up (u)">${safe(run)}</a> ›</p>`;
  if (!said) return html`<main id="main">${head}<h1 tabindex="-1">${safe(id)}</h1>${error ? html`<${Problem} error=${error.status === 404 ? missing : error} />` : html`<${Waiting} />`}</main>`;
  const actions = OPEN.includes(said.state) ? [{ name: "trajectory_stop", title: "Stop…", args: { trajectory: id }, danger: true }] : [];
  return html`<main id="main">${head}<div class="title"><h1 tabindex="-1">${safe(id)}</h1> <span class="tag">${safe(said.state)}</span>
      <span class="grow"></span><${session.Actions} of=${actions} /></div>
    <${Facts} of=${[["stage", safe(said.stage)], ["try", said.attempt], ["worker", safe(said.worker)], ["messages", messages.length]]} />
    ${said.note && html`<p class="warn">! ${safe(said.note)}</p>`}
    ${error && html`<${Problem} error=${error} />`}
    ${messages.length ? html`<${Messages} key=${id} id=${id} whole=${(n) => `/api/t/${encodeURIComponent(id)}/live/${n}`} data=${{ messages, next: null, outline: messages, events: [] }} />`
      : html`<p class="empty">${said.state === "queued" ? "It waits for a worker." : said.source ? "Nothing was said yet." : "It has ended; its record is shown when it is there."}</p>`}</main>`;
}
