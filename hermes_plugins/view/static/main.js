/** The frame around all pages: login, header, keys, and which page an address shows. */
import {
  ApiError, HELP, Theme, api, html, onLogout, render, resume, say, useAddress, useEffect, useRef, useState,
} from "./core.js";
import { useErrorBoundary } from "./vendor/hooks.js";
import { follow, hold, useLive } from "./live.js";
import { Problem, Waiting, bytes, count } from "./show.js";

/** First part of the path, and the module whose `Page` shows it. */
const PAGES = {
  "": () => import("./pages/fleet.js"),
  run: () => import("./pages/run.js"),
  all: () => import("./pages/run.js"),
  group: () => import("./pages/group.js"),
  t: () => import("./pages/trajectory.js"),
  dead: () => import("./pages/dead.js"),
  review: () => import("./pages/review.js"),
};

// --- header ------------------------------------------------------------------------------

const STATES = {
  live: ["●", "live"], waiting: ["○", "connecting"], held: ["‖", "held"], gone: ["✗", "no connection"],
};

/** What follows the queue, and the numbers that matter everywhere. */
function Pulse() {
  const { state, overview, error } = useLive();
  if (state === "off") return null;
  const [sign, word] = STATES[state];
  const waiting = (overview?.lanes || []).reduce((sum, lane) => sum + lane.depth, 0);
  const slots = (overview?.workers || []).reduce((sum, worker) => sum + (worker.slots || 0), 0);
  const redis = overview?.redis;
  return html`<span class=${"pulse " + state} title=${error}><span aria-hidden="true">${sign}</span> ${word}</span>
    <button class="small" aria-keyshortcuts="p" aria-pressed=${state === "held"} onClick=${hold} title="hold the picture (p)">hold</button>
    ${overview && html`<span class="totals">
      ${redis && html`<span class="wide">redis ${redis.version} ${bytes(redis.used_bytes)} ${redis.aof ? "AOF" : html`<b class="warn">! no AOF</b>`}</span>`}
      <span>running <b>${overview.leased}/${slots}</b></span> <span>waiting <b>${count(waiting)}</b></span></span>`}`;
}

const NAVIGATION = [["/", "Runs"], ["/all", "Trajectories"], ["/review", "Review"], ["/dead", "Dead letters"]];

/** @param {{session: any, path: string, help: () => void}} props */
function Header({ session, path, help }) {
  const { overview } = useLive();
  const dead = overview?.dead_letters;
  const links = NAVIGATION.filter(([href]) => session.live || href !== "/dead");
  return html`<header class="top">
    <a class="brand" href="/">hermes-queue</a>
    <nav aria-label="pages">${links.map(([href, name]) => html`<a href=${href} aria-current=${path === href ? "page" : undefined}>${name}${
      href === "/dead" && dead ? html` <b class="count">${dead}</b>` : ""}</a>`)}</nav>
    <span class="grow"></span><${Pulse} />
    <span class="role" title=${session.name ? `logged in as ${session.name}` : ""}>${session.role === "operate" && session.actions ? "operate" : "view only"}</span>
    <${Theme} /><button class="small" onClick=${help} aria-keyshortcuts="?" title="keys (?)">?</button>
  </header>`;
}

/** @param {{close: () => void, session: any}} props */
function Help({ close, session }) {
  const leave = () => api("/api/logout", { body: {} }).then(() => location.assign("/"), (error) => say(error.message));
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} onClose=${close} aria-labelledby="keys">
    <h2 id="keys">Keys</h2>
    <table><tbody>${HELP.map(([key, what]) => html`<tr><th scope="row"><kbd>${key}</kbd></th><td>${what}</td></tr>`)}</tbody></table>
    <p class="quiet">${session.name ? `${session.name}, ` : ""}${session.role === "operate" ? "may operate" : "may only look"} · hermes-queue ${session.version}</p>
    <p class="end"><button autofocus onClick=${() => dialog.current.close()}>Close</button> <button onClick=${leave}>Log out</button></p>
  </dialog>`;
}

// --- login -------------------------------------------------------------------------------

/** Exchange the secret behind `#` for a cookie; it leaves the address at once. */
async function enter() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return;
  history.replaceState(null, "", location.pathname + location.search);
  await api("/api/login", { body: { token } });
}

/** @param {{done: () => void, error: any}} props */
function Login({ done, error }) {
  const [failed, fail] = useState(error);
  const submit = async (event) => {
    event.preventDefault();
    const fields = new FormData(event.target);
    try {
      await api("/api/login", { body: { token: String(fields.get("token")).trim(), name: String(fields.get("name")).trim() } });
      done();
    } catch (problem) {
      fail(problem);
    }
  };
  return html`<main class="login"><h1 tabindex="-1">hermes-queue view</h1>
    <p>The command <code>hermes-queue view</code> printed an address with a secret behind the <code>#</code>. Open that address, or enter the secret here.</p>
    ${failed && html`<${Problem} error=${failed} />`}
    <form onSubmit=${submit}>
      <label>Secret <input name="token" type="password" autocomplete="off" required autofocus /></label>
      <label>Your name, for the record of actions <input name="name" maxlength="64" autocomplete="username" /></label>
      <button class="main">Log in</button>
    </form></main>`;
}

/** @returns {HTMLElement|null} */
const heading = () => document.querySelector("main h1");

// --- pages -------------------------------------------------------------------------------

/** The page of an address. @param {{path: string, session: any}} props */
function Shown({ path, session }) {
  const name = path.split("/")[1] || "";
  const [page, set] = useState({ name: null, Page: null });
  useEffect(() => {
    let current = true;
    const load = PAGES[name];
    if (!load) set({ name, Page: Missing });
    else load().then((module) => current && set({ name, Page: module.Page }), () => current && set({ name, Page: Broken }));
    return () => (current = false);
  }, [name]);
  // A new page begins at its heading, also for those who hear it.
  useEffect(() => {
    if (page.name !== name || resume()) return;
    heading()?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }, [path, page.name]);
  if (page.name !== name) return html`<main id="main"><${Waiting} /></main>`;
  return html`<${page.Page} key=${path} session=${session} ids=${idsOf(path)} />`;
}

/** @param {string} path */
function idsOf(path) {
  try {
    return path.split("/").slice(2).map(decodeURIComponent);
  } catch {
    return [""];
  }
}

const Missing = () => html`<main id="main"><h1 tabindex="-1">No such page</h1><p><a href="/">All runs</a></p></main>`;
const Broken = () => html`<main id="main"><h1 tabindex="-1">The page could not be loaded</h1>
  <p>Does the server still run? <button onClick=${() => location.reload()}>Load again</button></p></main>`;

/** Who we are, with the component that shows buttons: nothing for those who may only look. */
async function opened() {
  const session = await api("/api/session");
  if (session.role !== "operate" || !session.actions) return { ...session, Actions: () => null };
  const { Actions, learn } = await import("./actions.js");
  await learn();
  return { ...session, Actions };
}

function App() {
  const { path } = useAddress();
  const [session, setSession] = useState(null);
  const [error, setError] = useState(null);
  const [help, setHelp] = useState(false);
  const [fault, clear] = useErrorBoundary((problem) => console.error(problem));
  const ask = () => opened().then((found) => {
    setSession(found);
    if (found.role) setError(null);
    follow(Boolean(found.role && found.live));
  }, setError);
  useEffect(() => {
    onLogout.call = () => setSession((known) => known && { ...known, role: null });
    enter().catch(setError).then(ask);
  }, []);
  useEffect(() => clear(), [path]);
  if (!session) return error ? html`<main><${Problem} error=${error} /></main>` : html`<main><${Waiting} /></main>`;
  if (!session.role) return html`<${Login} done=${ask} error=${error} />`;
  return html`<a class="skip" href="#main" onClick=${skip}>To the content</a>
    <${Header} session=${session} path=${path} help=${() => setHelp(true)} />
    ${fault ? html`<main id="main"><h1 tabindex="-1">Something went wrong</h1><${Problem} error=${new ApiError(0, { error: "This page cannot show what it got.", hint: String(fault) })} /></main>`
      : html`<${Shown} path=${path} session=${session} />`}
    ${help && html`<${Help} session=${session} close=${() => setHelp(false)} />`}`;
}

/** @param {Event} event */
function skip(event) {
  event.preventDefault();
  heading()?.focus();
}

render(html`<${App} />`, document.getElementById("app"));
