/** What changes while one looks: one stream of events for the whole page. */
import { useEffect, useState } from "./core.js";

/**
 * @typedef {object} Live
 * @property {"off"|"waiting"|"live"|"held"|"gone"} state off: there is nothing to follow
 * @property {any} overview as `hermes-queue status --json` prints it, or null
 * @property {{upto: number, count: number, indexing: boolean}|null} index
 * @property {string} error why nothing comes
 */

/** @type {Live} */
let seen = { state: "off", overview: null, index: null, error: "" };
const watchers = new Set();
/** @type {EventSource|null} */
let stream = null;
let wanted = false;
let held = false;

/** @param {Partial<Live>} changes */
function change(changes) {
  seen = { ...seen, ...changes };
  for (const watcher of [...watchers]) watcher(seen);
}

/** @returns {Live} */
export function useLive() {
  const [state, set] = useState(seen);
  useEffect(() => {
    watchers.add(set);
    set(seen);
    return () => watchers.delete(set);
  }, []);
  return state;
}

/** Follow, or stop doing so. @param {boolean} on whether the server has something to follow */
export function follow(on) {
  wanted = on;
  settle();
}

/** Keep the picture as it is, or go on. */
export function hold() {
  held = !held;
  settle();
}

/** The stream is open just while somebody looks. */
function settle() {
  const open = wanted && !held && !document.hidden;
  if (open && !stream) connect();
  if (!open && stream) {
    stream.close();
    stream = null;
  }
  if (!open) change({ state: !wanted ? "off" : held ? "held" : "waiting" });
}
document.addEventListener("visibilitychange", settle);

function connect() {
  change({ state: "waiting" });
  stream = new EventSource("/api/events");
  const on = (name, act) =>
    stream?.addEventListener(name, (event) => {
      const data = parsed(event.data);
      if (data) act(data);
    });
  on("overview", (overview) => change({ overview, state: "live", error: "" }));
  on("change", (members) => change({ overview: { ...seen.overview, ...members }, state: "live", error: "" }));
  on("index", (index) => change({ index }));
  on("gone", (said) => change({ state: "gone", error: String(said.error || "Redis does not answer") }));
  stream.addEventListener("error", () => change({ state: "gone", error: "The server does not answer; trying again." }));
}

/** @param {string} text */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
