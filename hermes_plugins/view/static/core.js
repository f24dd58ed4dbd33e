/**
 * What every page needs, served or exported: elements, the address as the only state, the API, keys,
 * and the theme.
 *
 * Text of records reaches the document as text nodes alone: `html` makes elements of our own
 * templates, and a value in them never becomes markup.
 */
import { h, render } from "./vendor/preact.js";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";

export { render, useEffect, useLayoutEffect, useMemo, useRef, useState };

/** The answers in an exported file, by path; null where a server answers. @type {Record<string, any>|null} */
export const filed = JSON.parse(document.getElementById("filed")?.textContent || "null");

/** In an exported file the address is behind `#`, and there are no links to what it does not hold. */
function filedElement(type, props, ...children) {
  const to = type === "a" && props?.href;
  if (!to || !to.startsWith("/")) return h(type, props, ...children);
  if (to.startsWith("/api/") || to.startsWith("/review")) return null;
  return h(type, { ...props, href: "#" + (to.startsWith("/t/") || to.startsWith("/group/") ? to : "/") }, ...children);
}
export const html = htm.bind(filed ? filedElement : h);

// --- the address ---------------------------------------------------------------------------

/** @typedef {{path: string, params: URLSearchParams}} Address */

const readers = new Set();
/** @type {Address} */
let here = read();

/** @returns {Address} */
function read() {
  if (!filed) return { path: location.pathname, params: new URLSearchParams(location.search) };
  const [path, ...rest] = location.hash.slice(1).split("?");
  return { path: path || "/", params: new URLSearchParams(rest.join("?")) };
}

function moved() {
  here = read();
  for (const reader of [...readers]) reader(here);
}
addEventListener("popstate", moved);

/** The parameters of the present address, as text. */
export const search = () => here.params.toString();

/** @returns {Address} where we are; the caller renders again when that changes. */
export function useAddress() {
  const [address, set] = useState(here);
  useEffect(() => {
    readers.add(set);
    set(here);
    return () => readers.delete(set);
  }, []);
  return address;
}

/**
 * Go to an address of this page.
 * @param {string} href
 * @param {boolean} [replace] leave no entry in the history
 */
export function go(href, replace = false) {
  const to = filed ? "#" + href : href;
  if (replace) history.replaceState(history.state, "", to);
  else {
    const link = document.activeElement?.closest("a[data-nav]")?.getAttribute("href") || "";
    history.replaceState({ top: scrollY, link }, "");
    history.pushState(null, "", to);
  }
  moved();
}

/** @param {string} selector @returns {HTMLElement[]} */
export const elements = (selector) => [.../** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(selector))];

/** Go on where one was when one left this address; false if one comes here for the first time. */
export function resume() {
  const { top, link } = history.state || {};
  if (top === undefined) return false;
  let tries = 60; // one second: what is shown may have to be asked for
  const seek = () => {
    const row = link && elements("a[data-nav]").find((each) => each.getAttribute("href") === link);
    if (row || (!link && document.documentElement.scrollHeight >= top + innerHeight) || !--tries) {
      if (row) row.focus({ preventScroll: true });
      scrollTo(0, top);
    } else requestAnimationFrame(seek);
  };
  seek();
  return true;
}

/**
 * The present address with other parameters; `null` and "" remove one, a list repeats it.
 * @param {Record<string, string|number|string[]|null|undefined>} changes
 * @param {string} [path]
 */
export function link(changes, path = here.path) {
  const params = new URLSearchParams(path === here.path ? here.params : "");
  for (const [name, value] of Object.entries(changes)) {
    params.delete(name);
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "") params.append(name, String(each));
    }
  }
  const query = params.toString();
  return query ? `${path}?${query}` : path;
}

/**
 * A path whose parts are ids.
 * @param {string[]} parts
 */
export const pathOf = (...parts) => "/" + parts.map(encodeURIComponent).join("/");

// --- the API -------------------------------------------------------------------------------

export class ApiError extends Error {
  /**
   * @param {number} status 0: the server does not answer
   * @param {{error?: string, hint?: string, at?: number}} body
   */
  constructor(status, body) {
    super(body.error || `The server answered with ${status}.`);
    this.status = status;
    this.hint = body.hint || "";
    this.at = body.at;
  }
}

/** Called when a request says that we are not logged in. */
export const onLogout = { call: () => {} };

/** What an exported file answers. @param {string} path @param {boolean} [octets] */
function answerIn(path, octets) {
  const found = filed[path] ?? (path.startsWith("/api/t/") ? filed[path.split("?")[0]] : undefined);
  if (found === undefined) throw new ApiError(410, { error: "This is not in the exported file.", hint: "`hermes-queue view` shows it." });
  return octets ? Uint8Array.from(atob(found), (char) => char.charCodeAt(0)).buffer : found;
}

/**
 * Ask the API.
 * @param {string} path
 * @param {{signal?: AbortSignal, body?: object, octets?: boolean}} [options] `body`: a POST
 * @returns {Promise<any>} JSON, octets, or null for an empty answer
 */
export async function api(path, { signal, body, octets } = {}) {
  if (filed) return answerIn(path, octets);
  /** @type {RequestInit} */
  const init = { signal, credentials: "same-origin", headers: { Accept: "application/json" } };
  if (body !== undefined) {
    init.method = "POST";
    init.body = JSON.stringify(body);
    init.headers = { "Content-Type": "application/json", "X-HQ-Request": "1" };
  }
  let answer;
  try {
    answer = await fetch(path, init);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, { error: "The server does not answer.", hint: "Is `hermes-queue view` running?" });
  }
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({}));
    if (answer.status === 401 && path !== "/api/login") onLogout.call();
    throw new ApiError(answer.status, said);
  }
  if (answer.status === 204) return null;
  return octets ? answer.arrayBuffer() : answer.json();
}

/**
 * The answer of a path of the API; while another one is awaited, the last one stays.
 * @param {string|null} path null: ask nothing
 * @param {{octets?: boolean}} [options]
 * @returns {{data: any, error: ApiError|null, fresh: boolean, again: () => void}}
 *     `fresh`: the answer is that of this path
 */
export function useData(path, { octets = false } = {}) {
  const [state, set] = useState({ path: "", data: null, error: null });
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (path === null) return undefined;
    const stop = new AbortController();
    api(path, { signal: stop.signal, octets }).then(
      (data) => stop.signal.aborted || set({ path, data, error: null }),
      (error) => stop.signal.aborted || set({ path, data: null, error }),
    );
    return () => stop.abort();
  }, [path, round]);
  return { ...state, fresh: state.path === path, again: () => setRound((n) => n + 1) };
}

/**
 * `path?name=value`, without empty values.
 * @param {string} path
 * @param {Record<string, string|number|null|undefined>} values
 */
export function query(path, values) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== null && value !== undefined && value !== "") params.set(name, String(value));
  }
  const text = params.toString();
  return text ? `${path}?${text}` : path;
}

// --- what is kept in the browser: the theme and the columns, nothing else -----------------

/**
 * @param {"theme"|"columns"} name
 * @param {string} [value] to keep
 * @returns {string}
 */
export function kept(name, value) {
  try {
    if (value !== undefined) localStorage.setItem(name, value);
    return localStorage.getItem(name) || "";
  } catch {
    return value || ""; // the browser keeps nothing for this page
  }
}

/** Say something in passing, also to a screen reader. @param {string} text */
export function say(text) {
  const place = document.getElementById("said");
  if (!place) return;
  place.textContent = text;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => (place.textContent = ""), 4000);
}
say.timer = 0;

/** @param {string} text */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  say(`Copied: ${text.length > 120 ? text.slice(0, 120) + "…" : text}`);
}

// --- keys --------------------------------------------------------------------------------

/** Keys that mean the same everywhere; the others stand in `aria-keyshortcuts` of what they press. */
const MOVES = {
  j: () => step("[data-nav]", 1),
  k: () => step("[data-nav]", -1),
  e: () => step("[data-error]", 1),
  y: () => copy(location.href),
};
export const HELP = [
  ["j k", "next, previous row or message"], ["Enter", "open"], ["u", "up"], ["[ ]", "neighbour in the list"],
  ["/", "filter"], ["g", "group"], ["1 … 6", "tabs; on the review page: labels"], ["o", "fold outputs"],
  ["e", "next error"], ["r", "review"], ["y", "copy the link"], ["c", "copy the command"],
  ["← →", "tokens: previous, next"], ["p", "hold the picture"], ["?", "this help"],
];

const seen = (element) => element.getClientRects().length > 0;

/** Move the focus among the elements that `selector` finds. @param {string} selector @param {number} by */
function step(selector, by) {
  const all = elements(selector).filter(seen);
  if (!all.length) return;
  const active = document.activeElement;
  let at = all.findIndex((each) => each === active || each.contains(active));
  if (at < 0 && active && active !== document.body) {
    const after = all.findIndex((each) => active.compareDocumentPosition(each) & Node.DOCUMENT_POSITION_FOLLOWING);
    at = (after < 0 ? all.length : after) - (by > 0 ? 1 : 0);
  }
  const next = all[Math.max(0, Math.min(all.length - 1, at + by))];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

/** @param {KeyboardEvent} event */
function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const target = /** @type {HTMLElement} */ (event.target);
  if (target.matches("input:not([type=checkbox]), textarea, select")) {
    if (event.key === "Escape") target.blur();
    return;
  }
  if (document.querySelector("dialog[open]")) return;
  const press = elements("[aria-keyshortcuts]").find(
    (each) => seen(each) && each.getAttribute("aria-keyshortcuts") === event.key,
  );
  if (!press && !MOVES[event.key]) return;
  event.preventDefault();
  if (!press) MOVES[event.key]();
  else if (press.matches("input:not([type=checkbox]), textarea, select")) press.focus();
  else press.click();
}
document.addEventListener("keydown", pressed);

/** Links to pages of ours change the page without loading it anew. @param {MouseEvent} event */
function clicked(event) {
  /** @type {HTMLAnchorElement|null} */
  const anchor = /** @type {HTMLElement} */ (event.target).closest?.("a[href]");
  if (!anchor || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  if (anchor.origin !== location.origin || anchor.hasAttribute("download") || anchor.target) return;
  if (anchor.pathname.startsWith("/api/")) return;
  event.preventDefault();
  go(filed ? anchor.hash.slice(1) : anchor.pathname + anchor.search);
}
document.addEventListener("click", clicked);

// --- theme -------------------------------------------------------------------------------

const THEMES = { "": "light dark", light: "light", dark: "dark" };

/** @param {string} name */
function paint(name) {
  document.documentElement.style.colorScheme = THEMES[name] || THEMES[""];
}
paint(kept("theme"));
history.scrollRestoration = "manual";

/** A button that goes on to the next theme. */
export function Theme() {
  const [name, set] = useState(kept("theme"));
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(name) + 1) % names.length];
  const use = () => {
    paint(kept("theme", next));
    set(next);
    say(`Theme: ${next || "as the system"}`);
  };
  return html`<button class="small" onClick=${use} title=${`theme: ${name || "as the system"}`}
    ><span aria-hidden="true">◐</span><span class="unseen">theme: ${name || "as the system"}</span></button>`;
}
