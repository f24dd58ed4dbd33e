/** The frame of an exported file: a list of what it holds, groups and trajectories, and no server. */
import {
  ApiError, HELP, Theme, elements, filed, go, html, link, pathOf, render, useAddress, useEffect, useRef, useState,
} from "./core.js";
import { useErrorBoundary } from "./vendor/hooks.js";
import { Facts, Problem, count, entitle, safe, when } from "./show.js";
import { Table } from "./pages/list.js";
import { Page as Group } from "./pages/group.js";
import { Page as Trajectory } from "./pages/trajectory.js";

const ABOUT = filed["/api/filed"];
const SESSION = { role: "view", live: false, tokenizer: false, reviews: false, actions: false, Actions: () => null };
const KEYS = ["/", "p", "r", "c"];

/** @param {{groups: any[]}} props */
const Groups = ({ groups }) => html`<h2>Groups</h2><ul>${groups.map((each) => html`<li><a data-nav href=${pathOf("group", each.group)}>${safe(each.instance || each.group)}</a> <span class="quiet">${each.count} samples</span></li>`)}</ul>`;

/** All that the file holds. */
function Home() {
  const { rows, groups, title, made, version, left_out: left } = ABOUT;
  entitle(title);
  return html`<main id="main"><div class="title"><h1 tabindex="-1">${safe(title)}</h1></div>
    <${Facts} of=${[["trajectories", count(rows.length)], ["exported", when(made)], ["hermes-queue", safe(version)]]} />
    ${left > 0 && html`<p class="warn">! ${left} of them could not be read.</p>`}
    <${Table} rows=${rows} caption="trajectories" run=${true} plain=${true} />
    ${groups.length > 0 && html`<${Groups} groups=${groups} />`}</main>`;
}

/** @param {{close: () => void}} props */
function Help({ close }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} onClose=${close} aria-labelledby="keys"><h2 id="keys">Keys</h2>
    <table><tbody>${HELP.filter(([key]) => !KEYS.includes(key)).map(([key, what]) => html`<tr><th scope="row"><kbd>${key}</kbd></th><td>${what}</td></tr>`)}</tbody></table>
    <p class="end"><button autofocus onClick=${() => dialog.current.close()}>Close</button></p></dialog>`;
}

/** The ids in an address. @param {string} path */
function idsOf(path) {
  try {
    return path.split("/").slice(2).map(decodeURIComponent);
  } catch {
    return [""];
  }
}

function App() {
  const { path } = useAddress();
  const [help, setHelp] = useState(false);
  const [fault, clear] = useErrorBoundary((problem) => console.error(problem));
  useEffect(() => clear(), [path]);
  useEffect(() => {
    elements("main h1")[0]?.focus({ preventScroll: true });
  }, [path]);
  const Page = { t: Trajectory, group: Group }[path.split("/")[1]] || Home;
  return html`<header class="top"><a class="brand" href="/">hermes-queue</a><span class="grow"></span><span class="role">exported</span>
      <${Theme} /><button class="small" onClick=${() => setHelp(true)} aria-keyshortcuts="?" title="keys (?)">?</button></header>
    ${fault ? html`<main id="main"><h1 tabindex="-1">Something went wrong</h1><${Problem} error=${new ApiError(0, { error: "This page cannot show what it got.", hint: String(fault) })} /></main>`
      : html`<${Page} key=${path} session=${SESSION} ids=${idsOf(path)} />`}
    ${help && html`<${Help} close=${() => setHelp(false)} />`}`;
}

if (!location.hash && ABOUT.begin) go(link({}, ABOUT.begin), true);
render(html`<${App} />`, document.getElementById("app"));
