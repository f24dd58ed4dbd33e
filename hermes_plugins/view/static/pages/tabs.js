/** Views of one page, as links: which one is shown stands in the address. */
import { html, link } from "../core.js";

/** @param {{tabs: string[][], tab: string}} props */
export const Tabs = ({ tabs, tab }) => html`<nav class="tabs" aria-label="views">${tabs.map(([id, title], at) => html`
  <a href=${link({ tab: id, after: null, m: null })} aria-current=${tab === id ? "page" : undefined} aria-keyshortcuts=${String(at + 1)} title=${`${title} (${at + 1})`}>${title}</a>`)}</nav>`;
