/** Keys, links and the theme: the same on every page, served or exported. */
import { copy, elements, filed, go, html, kept, say, useState } from "./core.js";

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
