/** Messages of a trajectory by turns: folded, filtered by kind, all of it in the document. */
import { api, filed, go, html, link, query, search, useAddress, useEffect, useMemo, useRef, useState } from "../core.js";
import { Marked, Problem, asText, bytes, count, part, safe, seconds } from "../show.js";

const HEAD_LINES = 20;
const FOLD_FROM = 48;
/** A line longer than this is wrapped, and has no number: browsers lay it out slowly otherwise. */
const LONGEST_LINE = 2000;
/** What has longer lines may have to be scrolled, also by keys. */
const NARROWEST = 40;
const SYSTEM_OPEN_BYTES = 600;

export const KINDS = [["reasoning", "reasoning"], ["calls", "calls"], ["outputs", "outputs"], ["errors", "errors"]];

// --- text with lines -------------------------------------------------------------------------

/** Offsets where lines begin. @param {string} text */
function lineStarts(text) {
  const starts = [0];
  for (let at = text.indexOf("\n"); at >= 0 && at + 1 < text.length; at = text.indexOf("\n", at + 1)) starts.push(at + 1);
  return starts;
}

/** One block with line numbers beside it: one node for all of them. @param {{of: any, first: number, lines: number, widest: number}} props */
function Block({ of, first, lines, widest }) {
  const wrap = widest > LONGEST_LINE;
  const scrolls = widest > NARROWEST ? { tabindex: 0, role: "group", "aria-label": "text" } : {};
  return html`<div class=${wrap ? "lines wrap" : "lines"}>
  ${!wrap && html`<pre class="gutter" aria-hidden="true">${Array.from({ length: lines }, (_, at) => first + at).join("\n")}</pre>`}<pre class="text" ...${scrolls}><${Marked} of=${of} /></pre></div>`;
}

/** A long text: its first and last lines, and the rest, which also a find in the page opens. @param {{of: any}} props */
export function Lines({ of }) {
  const text = asText(of);
  const starts = useMemo(() => lineStarts(text.text), [text.text]);
  const [open, set] = useState(false);
  const total = starts.length;
  const widest = useMemo(() => longest(starts, text.text.length), [text.text]);
  if (total <= FOLD_FROM || widest > LONGEST_LINE) return html`<${Block} of=${text} first=${1} lines=${total} widest=${widest} />`;
  const [from, to] = [starts[HEAD_LINES], starts[total - HEAD_LINES]];
  return html`<${Block} of=${part(text, 0, from)} first=${1} lines=${HEAD_LINES} widest=${widest} />
    <button class="more" aria-expanded=${open} onClick=${() => set(!open)}>${open ? "fold" : "show"} ${total - 2 * HEAD_LINES} lines</button>
    <${Hidden} open=${open} found=${() => set(true)}><${Block} of=${part(text, from, to)} first=${HEAD_LINES + 1} lines=${total - 2 * HEAD_LINES} widest=${widest} /></${Hidden}>
    <${Block} of=${part(text, to, text.text.length)} first=${total - HEAD_LINES + 1} lines=${HEAD_LINES} widest=${widest} />`;
}

/** @param {number[]} starts @param {number} length */
function longest(starts, length) {
  let most = 0;
  for (let at = 0; at < starts.length; at++) most = Math.max(most, (starts[at + 1] ?? length) - starts[at]);
  return most;
}

/** What is folded stays in the document: a find in the page opens it. @param {{open: boolean, found: () => void, children?: any}} props */
export function Hidden({ open, found, children }) {
  const place = useRef(null);
  useEffect(() => {
    const element = place.current;
    if (open) element.removeAttribute("hidden");
    else element.setAttribute("hidden", "until-found");
    element.addEventListener("beforematch", found);
    return () => element.removeEventListener("beforematch", found);
  }, [open]);
  return html`<div ref=${place}>${children}</div>`;
}

// --- arguments of calls ------------------------------------------------------------------------

/** Arguments by name, if they are a complete object without marks; otherwise null. @param {any} text */
function fields(text) {
  if (text.cut || (text.marks || []).length) return null;
  try {
    const value = JSON.parse(text.text);
    return value && typeof value === "object" && !Array.isArray(value) ? Object.entries(value) : null;
  } catch {
    return null;
  }
}

/** @param {{call: any, exact: boolean}} props */
function Call({ call, exact }) {
  const text = asText(call.arguments);
  const named = exact ? null : fields(text);
  const short = named && named.length === 1 && typeof named[0][1] === "string" && !named[0][1].includes("\n");
  return html`<div class="call"><span class="arrow" aria-hidden="true">→</span> <b>${safe(call.name)}</b>
    ${!named ? html`<${Lines} of=${text} />` : short ? html` <code>${safe(named[0][1])}</code>` : html`<dl>${named.map(([name, value]) => html`<div><dt>${safe(name)}</dt>
      <dd>${typeof value === "string" && value.includes("\n") ? html`<${Lines} of=${value} />` : html`<code>${safe(value)}</code>`}</dd></div>`)}</dl>`}</div>`;
}

// --- one message -------------------------------------------------------------------------------

const failed = (message) => message.kind === "error";
/** Flags that are no finding, since the message shows them anyway. */
const ORDINARY = ["error", "reasoning", "cut", "odd"];
const findings = (message) => (message.flags || []).filter((flag) => !ORDINARY.includes(flag));

/** Whether the server has cut a text of it. @param {any} message */
const isCut = ({ content, reasoning, calls }) => [content, reasoning, ...(calls || []).map((call) => call.arguments)].some((text) => text?.cut);

/** The first words of a text. @param {any} value */
const glimpse = (value) => (value ? asText(value).text.slice(0, 160).replace(/\s+/g, " ").trim() : "");

/** What a folded message says of itself. @param {any} message */
function summary(message) {
  const calls = (message.calls || []).map((call) => `→ ${safe(call.name)} ${glimpse(call.command || call.arguments)}`).join("  ");
  return [glimpse(message.content), calls].filter(Boolean).join("  ") || glimpse(message.reasoning);
}

/** Whether its output is folded, as long as nobody says otherwise. @param {any} message @param {Set<string>} off */
function folded(message, off) {
  if (message.role === "tool") return failed(message) ? off.has("errors") : off.has("outputs");
  return message.role === "system" && message.bytes > SYSTEM_OPEN_BYTES;
}

/** @param {{message: any, off: Set<string>, whole: (n: number) => string}} props `whole`: where all of a message is */
function Body({ message, off, whole: pathOf }) {
  const [whole, set] = useState(null);
  const [error, fail] = useState(null);
  const [thought, think] = useState(!off.has("reasoning"));
  useEffect(() => think(!off.has("reasoning")), [off.has("reasoning")]);
  const path = pathOf(message.n);
  const seen = whole || message;
  const cut = isCut(seen);
  const flat = ["assistant", "user", "system"].includes(message.role);
  return html`${seen.reasoning && html`<div class="reasoning"><button class="fold" aria-expanded=${thought} onClick=${() => think(!thought)}>reasoning <span class="quiet">${bytes(asText(seen.reasoning).bytes)}</span></button>
      <${Hidden} open=${thought} found=${() => think(true)}><pre class="prose"><${Marked} of=${seen.reasoning} /></pre></${Hidden}></div>`}
    ${seen.content && asText(seen.content).text !== "" && (flat ? html`<pre class="prose"><${Marked} of=${seen.content} /></pre>` : html`<${Lines} of=${seen.content} />`)}
    ${!off.has("calls") && (seen.calls || []).map((call, at) => html`<${Call} key=${at} call=${call} exact=${false} />`)}
    ${seen.more_calls > 0 && html`<p class="quiet">and ${seen.more_calls} more calls</p>`}
    ${seen.odd && html`<p class="quiet">Other fields of this message:</p><${Lines} of=${seen.odd} />`}
    ${error && html`<${Problem} error=${error} />`}
    ${cut && whole && html`<p class="warn">! More than a page can show; <a href=${link({ tab: "record", m: null })}>the record</a> has all of it.</p>`}
    ${cut && !whole && html`<p class="tools"><button class="small" onClick=${() => api(path).then(set, fail)}>show the whole ${bytes(message.bytes)}</button> <a class="small" href=${path} target="_blank" rel="noreferrer">raw</a></p>`}`;
}

/** @param {{message: any, off: Set<string>, whole: (n: number) => string, marked: boolean}} props */
function Message({ message, off, whole, marked }) {
  const [chosen, choose] = useState(null);
  const rest = folded(message, off);
  useEffect(() => choose(null), [rest]);
  const open = chosen === null ? !rest : chosen;
  const bad = failed(message);
  return html`<article id=${`m${message.n}`} class=${`message ${safe(message.role)} ${bad ? "bad" : ""} ${marked ? "marked" : ""}`}>
    <h3><button data-nav data-error=${bad ? "" : undefined} aria-expanded=${open} onClick=${() => choose(!open)}>
      <span class="number">${message.n}</span> <span class="who">${safe(message.role)}${message.name ? ` ${safe(message.name)}` : ""}</span>
      ${bad && html`<span class="fail">✗<span class="unseen"> error</span></span> `}${Number.isInteger(message.exit) && message.exit !== 0 && html`<span class="fail">exit ${message.exit}</span> `}${findings(message).map((flag) => html`<span class="flag">! ${safe(flag)}</span> `)}
      <span class="glimpse">${!open && safe(summary(message))}</span><span class="size">${bytes(message.bytes)}</span></button></h3>
    <${Hidden} open=${open} found=${() => choose(true)}><div class="body"><${Body} message=${message} off=${off} whole=${whole} /></div></${Hidden}></article>`;
}

// --- turns -------------------------------------------------------------------------------------

/** Messages by turn: each begins with an assistant's. @param {any[]} messages */
export function turnsOf(messages) {
  /** @type {{n: number, messages: any[]}[]} */
  const turns = [];
  for (const message of messages) {
    if (message.role === "assistant" || !turns.length) turns.push({ n: turns.length, messages: [] });
    turns[turns.length - 1].messages.push(message);
  }
  if (turns.length && turns[0].messages[0].role !== "assistant") turns.forEach((turn, at) => (turn.n = at - 1));
  return turns;
}

/** Events that are shown as rules between turns. */
const BREAKS = ["context_rewrite", "sequence_break"];

/** What the model call of a turn took, if the record says it. @param {any} turn */
const factsOf = (turn) => turn.messages.find((message) => message.turn)?.turn || null;
const known = (value) => value !== null && value !== undefined;

/** What an event between turns says. @param {any} event */
const rule = (event) => [event.event, event.details?.reason, event.details?.policy].filter((each) => typeof each === "string").map(safe).join(" · ");

/** @param {{turn: any, events: any[], off: Set<string>, whole: (n: number) => string, at: number|null}} props */
function Turn({ turn, events, off, whole, at }) {
  const calls = turn.messages.flatMap((message) => message.calls || []);
  const facts = factsOf(turn);
  return html`<section class="turn" aria-label=${turn.n < 0 ? "task" : `turn ${turn.n + 1}`}>
    ${events.map((event) => html`<p class="rule">${rule(event)}</p>`)}
    <h2 class="sticky"><span>${turn.n < 0 ? "task" : `turn ${turn.n + 1}`}</span> <span class="quiet">${calls.map((call) => safe(call.name)).join(", ")}</span>
      <span class="grow"></span>${known(facts?.seconds) && html`<span class="quiet">${seconds(facts.seconds)}</span>`}${known(facts?.completion_tokens) && html` <span class="quiet">${count(facts.completion_tokens)} tok</span>`}${facts?.finish && facts.finish !== "stop" && facts.finish !== "tool_calls" && html` <span class="warn">! ${safe(facts.finish)}</span>`}</h2>
    ${turn.messages.map((message) => html`<${Message} key=${message.n} message=${message} off=${off} whole=${whole} marked=${message.n === at} />`)}</section>`;
}

/** @param {{off: Set<string>, more: any}} props `more`: what else can be had */
function Chips({ off, more }) {
  const toggle = (kind) => {
    const next = new Set(off);
    next.delete(kind) || next.add(kind);
    go(link({ hide: [...next].join(",") || "none" }), true);
  };
  return html`<fieldset class="chips"><legend>show</legend>${KINDS.map(([kind, title]) => html`<label class="chip"><input type="checkbox" checked=${!off.has(kind)} aria-keyshortcuts=${kind === "outputs" ? "o" : undefined} onChange=${() => toggle(kind)} /> ${title}</label>`)} ${more}</fieldset>`;
}

/** Messages, and the loading of those that follow. @param {string} id @param {any} first answer of `/api/t/ID` @param {number|null} until */
function useMessages(id, first, until) {
  const [more, set] = useState({ id: "", messages: [], next: null });
  const state = more.id === id ? more : { id, messages: first.messages || [], next: first.next ?? null };
  const [busy, setBusy] = useState(false);
  const [error, fail] = useState(null);
  /** `uncut`: begin anew, with the whole texts of all. @param {boolean} all @param {boolean} [uncut] */
  const load = async (all, uncut = false) => {
    if (busy || (state.next === null && !uncut)) return;
    setBusy(true);
    let { messages, next } = uncut ? { messages: [], next: 0 } : state;
    try {
      do {
        const found = await api(query(`/api/t/${encodeURIComponent(id)}/messages`, { from: next, whole: uncut ? 1 : null }));
        messages = [...messages, ...found.messages];
        next = found.next > next ? found.next : null;
      } while (next !== null && (all || (until !== null && until >= next)));
    } catch (problem) {
      fail(problem);
    }
    set({ id, messages, next });
    setBusy(false);
  };
  useEffect(() => {
    if (until !== null && state.next !== null && until >= state.next) load(false);
  }, [id, until]);
  return { ...state, load, busy, error };
}

/** Loads more when its place comes into view. @param {{left: number, load: (all: boolean) => void, busy: boolean}} props */
function Rest({ left, load, busy }) {
  const place = useRef(null);
  useEffect(() => {
    const watch = new IntersectionObserver((seen) => seen.some((each) => each.isIntersecting) && load(false), { rootMargin: "800px" });
    watch.observe(place.current);
    return () => watch.disconnect();
  }, [left, busy]);
  return html`<p class="tools" ref=${place}>${busy ? "…" : html`<button onClick=${() => load(true)}>Load the other ${left} messages</button>`}</p>`;
}

/** Elements made once, until what they are made of changes: the page then leaves them alone. */
function useMade() {
  const made = useRef(new Map());
  return (key, parts, make) => {
    const known = made.current.get(key);
    if (known && known.parts.every((part, at) => part === parts[at])) return known.element;
    const element = make();
    made.current.set(key, { parts, element });
    return element;
  };
}

/** One turn at a glance. @param {{turn: any, calls: string, here: boolean, share: number}} props */
function Glance({ turn, calls, here, share }) {
  const [first] = turn.messages;
  const bad = turn.messages.some(failed);
  const flagged = turn.messages.some((message) => findings(message).length);
  return html`<li><a href=${link({ m: first.n, f: null, tab: null })} aria-current=${here ? "true" : undefined}>
    <span class="number">${turn.n < 0 ? "–" : turn.n + 1}</span><span aria-hidden="true">${turn.messages.length > 1 ? "●" : "·"}</span> <span class="what">${turn.n < 0 ? "task" : safe(calls || first.kind)}</span>
    ${bad && html`<span class="fail">✗<span class="unseen"> error</span></span>`}${flagged && html`<span class="flag">◆<span class="unseen"> finding</span></span>`}
    ${share > 0 && html`<span class="spent" style=${{ width: `${share * 40}px` }}></span>`}</a></li>`;
}

/** All turns; each leads to its messages. @param {{outline: any[], at: number|null, read: Map<number, any>}} props */
function Outline({ outline, at, read }) {
  const made = useMade();
  const turns = useMemo(() => turnsOf(outline), [outline]);
  const took = turns.map((turn) => read.get(turn.messages[0].n)?.turn?.seconds || 0);
  const most = took.reduce((a, b) => Math.max(a, b), 0.001);
  return html`<nav class="outline" aria-label="outline"><h2>Outline</h2><ol>${turns.map((turn, place) => {
    const here = at !== null && turn.messages.some((message) => message.n === at);
    const calls = (read.get(turn.messages[0].n)?.calls || []).map((call) => call.name).join(", ");
    const share = took[place] / most;
    return made(turn.n, [turn, calls, here, share, search()], () => html`<${Glance} key=${turn.n} turn=${turn} calls=${calls} here=${here} share=${share} />`);
  })}</ol></nav>`;
}

/** What judges say, with a link to each passage. @param {{of: any[]}} props */
const Findings = ({ of }) => of.length > 0 && html`<section class="notice" aria-label="findings"><h2>${of.length} finding${of.length === 1 ? "" : "s"}</h2><ul>${of.map((each, place) => html`<li>
  <span class="flag">◆ ${safe(each.label)}</span> <span class="quiet">${safe(each.by)}</span> ${each.message !== null ? html`<a href=${link({ m: each.message, f: each.broken ? null : place, tab: null })}>message ${each.message}</a>` : each.place === "patch" ? html`<a href=${link({ tab: "patch", m: null, f: null })}>patch</a>` : ""}
  ${each.broken && html` <b class="fail">✗ the quote is not there</b>`} ${asText(each.quote).text && html`<q><${Marked} of=${each.quote} /></q>`} <${Marked} of=${each.note} /></li>`)}</ul></section>`;

/** Bring a passage of a message into view, whatever folds hide it. @param {HTMLElement} place @param {string} quote */
function toPassage(place, quote) {
  const marks = [.../** @type {NodeListOf<HTMLElement>} */ (place.querySelectorAll(".finding"))];
  const mark = marks.find((each) => each.textContent && quote.startsWith(each.textContent)) || marks[0];
  if (!mark) return place.scrollIntoView({ block: "start" });
  for (let fold = mark.closest("[hidden]"); fold; fold = fold.parentElement.closest("[hidden]")) {
    fold.dispatchEvent(new Event("beforematch"));
    fold.removeAttribute("hidden");
  }
  requestAnimationFrame(() => mark.scrollIntoView({ block: "center" }));
}

/** @param {{id: string, data: any, whole?: (n: number) => string}} props `whole`: where the API has all of a message */
export function Messages({ id, data, whole = (n) => `/api/t/${encodeURIComponent(id)}/messages/${n}` }) {
  const { params } = useAddress();
  const at = params.has("m") ? Number(params.get("m")) : null;
  const hide = params.get("hide");
  const off = useMemo(() => new Set((hide || "").split(",").filter((kind) => kind && kind !== "none")), [hide]);
  const { messages, next, load, busy, error } = useMessages(id, data, at);
  const read = useMemo(() => new Map(messages.map((message) => [message.n, message])), [messages]);
  const turns = turnsOf(messages);
  const made = useMade();
  const reached = at !== null && messages.some((message) => message.n === at);
  const finding = params.has("f") ? (data.findings || [])[Number(params.get("f"))] : null;
  useEffect(() => {
    const place = reached && document.getElementById(`m${at}`);
    if (!place) return;
    if (finding) toPassage(place, asText(finding.quote).text);
    else place.scrollIntoView({ block: "start" });
    place.querySelector("button")?.focus({ preventScroll: true });
  }, [at, reached, finding]);
  const events = (turn) => (data.events || []).filter((event) => BREAKS.includes(event.event) && turn.messages.some((message) => message.n === event.at));
  const left = (data.outline || []).length - messages.length;
  const some = !filed && data.row && (next !== null || messages.some(isCut));
  return html`<div class="reading"><div class="transcript"><${Findings} of=${data.findings || []} /><${Chips} off=${off} more=${some && html`<button class="small" disabled=${busy} onClick=${() => load(true, true)}>all texts, whole</button>`} />
      ${turns.map((turn) => made(turn.n, [turn.messages[0], turn.messages.length, off, turn.messages.some((message) => message.n === at)], () => html`<${Turn} key=${turn.n} turn=${turn} events=${events(turn)} off=${off} whole=${whole} at=${at} />`))}
      ${error && html`<${Problem} error=${error} />`}
      ${next !== null && html`<${Rest} left=${left > 0 ? left : ""} load=${load} busy=${busy} />`}
      ${!messages.length && html`<p class="empty">No messages were recorded.</p>`}</div>
    <${Outline} outline=${data.outline || []} at=${at} read=${read} /></div>`;
}
