/**
 * What every page needs: elements, the address as the only state, and the API.
 *
 * Text of records reaches the document as text nodes alone: `html` makes elements of our own
 * templates, and a value in them never becomes markup.
 */
import { h, render } from "./vendor/preact.js";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";

export { render, useEffect, useLayoutEffect, useMemo, useRef, useState };
export const html = htm.bind(h);

// --- the address ---------------------------------------------------------------------------

/** @typedef {{path: string, params: URLSearchParams}} Address */

const readers = new Set();
/** @type {Address} */
let here = read();

/** @returns {Address} */
function read() {
  return { path: location.pathname, params: new URLSearchParams(location.search) };
}

function moved() {
  here = read();
  for (const reader of [...readers]) reader(here);
}
addEventListener("popstate", moved);

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
  if (replace) history.replaceState(history.state, "", href);
  else {
    const link = document.activeElement?.closest("a[data-nav]")?.getAttribute("href") || "";
    history.replaceState({ top: scrollY, link }, "");
    history.pushState(null, "", href);
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

/**
 * Ask the API.
 * @param {string} path
 * @param {{signal?: AbortSignal, body?: object, octets?: boolean}} [options] `body`: a POST
 * @returns {Promise<any>} JSON, octets, or null for an empty answer
 */
export async function api(path, { signal, body, octets } = {}) {
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
