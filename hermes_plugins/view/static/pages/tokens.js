/** Tokens of a sequence as one strip, coloured without an element for each token. */
import { copy, go, html, link, useAddress, useData, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../core.js";
import { Facts, Problem, Waiting, count, safe, signed } from "../show.js";
import { clear, coloured, drawable, placeAt, put } from "./highlight.js";

/** Upper bounds of −logp of all steps of colour but the last one. */
export const STEPS = [0.02, 0.1, 0.5, 1, 2, 4, 7];
const SPARKS = "▁▂▃▄▅▆▇█";
const SPARK_CELLS = 12;
const MOST_IN_BLOCK = 4096;

// --- data ------------------------------------------------------------------------------------

/**
 * @typedef {object} Sequence
 * @property {Int32Array} ids
 * @property {Uint8Array} mask
 * @property {Float32Array} logprobs
 */

/** Octets of the API: ids, mask, log-probabilities, without padding. @param {ArrayBuffer} octets @returns {Sequence} */
export function decode(octets) {
  const n = Math.floor(octets.byteLength / 9);
  return {
    ids: new Int32Array(octets, 0, n),
    mask: new Uint8Array(octets, 4 * n, n),
    logprobs: new Float32Array(octets.slice(5 * n, 9 * n)),
  };
}

/** Rows of trained tokens, where the server names no turns. @param {Uint8Array} mask */
function rows(mask) {
  const found = [];
  for (let at = mask.indexOf(1); at >= 0; at = mask.indexOf(1, at)) {
    let end = mask.indexOf(0, at);
    if (end < 0) end = mask.length;
    found.push({ turn: null, start: at, length: end - at, policy: null });
    at = end;
  }
  return found;
}

/** Blocks of the strip: the context before a turn, and the turn. @param {Sequence} sequence @param {any[]|null} turns */
export function blocksOf(sequence, turns) {
  const found = [];
  let at = 0;
  const add = (to, turn) => {
    for (; at < to; at = Math.min(to, at + MOST_IN_BLOCK)) found.push({ from: at, to: Math.min(to, at + MOST_IN_BLOCK), turn, start: turn ? turn.start : to });
  };
  for (const turn of turns || rows(sequence.mask)) if (turn.start >= at) add(turn.start + turn.length, turn);
  add(sequence.ids.length, null);
  return found;
}

/** The text of each block, and where each token begins in it. @param {Sequence} sequence @param {any[]} blocks @param {any[]|null} pieces */
export function textsOf(sequence, blocks, pieces) {
  const words = pieces ? null : Array.from(sequence.ids, String);
  const spread = pieces ? piecesByToken(pieces, sequence.ids.length) : null;
  return blocks.map(({ from, to }) => {
    const starts = new Uint32Array(to - from + 1);
    const parts = [];
    let length = 0;
    for (let at = from; at < to; at++) {
      starts[at - from] = length;
      const part = words ? words[at] + " " : spread[at];
      parts.push(part);
      length += part.length;
    }
    starts[to - from] = length;
    return { text: parts.join(""), starts, gap: words ? 1 : 0 };
  });
}

/** Ids that share a character: their piece stands at the first one. @param {[string, number][]} pieces @param {number} size */
function piecesByToken(pieces, size) {
  const found = new Array(size).fill("");
  let at = 0;
  for (const [text, ids] of pieces) {
    if (at < size) found[at] = safe(text);
    at += ids;
  }
  return found;
}

// --- steps of colour ---------------------------------------------------------------------------

/** @param {number} logprob */
export function stepOf(logprob) {
  const found = STEPS.findIndex((bound) => -logprob <= bound);
  return found < 0 ? STEPS.length : found;
}

/** Names of the colour of a token. @param {string} by @param {Sequence} sequence @param {any[]} policies */
function painter(by, sequence, policies) {
  const { mask, logprobs } = sequence;
  if (by === "mask") return (at) => (mask[at] ? "tok-trained" : "tok-context");
  if (by === "policy") return (at, turn) => (mask[at] ? `tok-p${policies.indexOf(policyAt(turn, at)) % 8}` : "tok-context");
  return (at) => (mask[at] ? `tok-${stepOf(logprobs[at])}` : "tok-context");
}

/** The policy that sampled a token. @param {any} turn @param {number} at */
export function policyAt(turn, at) {
  if (!turn) return null;
  let found = turn.policy ?? null;
  for (const [version, from] of turn.spans || []) if (at - turn.start >= from) found = version;
  return found;
}

/** Neighbours of one colour: [name, first token, behind the last]. @param {any} block @param {(at: number, turn: any) => string} paint */
function runs(block, paint) {
  const found = [];
  for (let at = block.from; at < block.to; at++) {
    const name = paint(at, at >= block.start ? block.turn : null);
    const last = found[found.length - 1];
    if (last && last[0] === name) last[2] = at + 1;
    else found.push([name, at, at + 1]);
  }
  return found;
}

/** Surprise along a block, in a few signs. @param {Sequence} sequence @param {any} block */
function sparks(sequence, block) {
  const [from, size] = [block.start, block.to - block.start];
  if (size <= 0) return "";
  const cells = Math.min(SPARK_CELLS, size);
  let text = "";
  for (let cell = 0; cell < cells; cell++) {
    let most = 0;
    for (let at = from + Math.floor((cell * size) / cells); at < from + Math.floor(((cell + 1) * size) / cells); at++) {
      if (sequence.mask[at]) most = Math.max(most, stepOf(sequence.logprobs[at]));
    }
    text += SPARKS[most];
  }
  return text;
}

// --- the strip ---------------------------------------------------------------------------------

/** @param {any} block @param {Sequence} sequence @param {number} at */
function title(block, sequence, at) {
  if (!block.turn) return "after the last turn";
  const name = block.turn.turn === null || block.turn.turn === undefined ? `part ${at + 1}` : `turn ${block.turn.turn + 1}`;
  return `${name}  ${sparks(sequence, block)}  ${Math.max(0, block.start - block.from)} + ${Math.max(0, block.to - Math.max(block.start, block.from))} ids`;
}

/** With the browser's highlights one text node; else neighbours of a colour share a span. */
const Block = ({ block, text, sequence, at, colours }) => html`<section class="strip-block"><h2>${title(block, sequence, at)}</h2>
  <pre data-block=${at}>${drawable() ? text.text : colours.map(([name, from, to]) => html`<span class=${name}>${text.text.slice(text.starts[from - block.from], text.starts[to - block.from])}</span>`)}</pre></section>`;

/** What is known of one token. */
function About({ sequence, blocks, texts, at, spoken }) {
  if (at === null) return html`<p class="about quiet" aria-live="polite">Point at a token, or use ← and →.</p>`;
  const place = blocks.findIndex((block) => at >= block.from && at < block.to);
  const block = blocks[place];
  const { text, starts, gap } = texts[place];
  const logprob = sequence.logprobs[at];
  const policy = at >= block.start ? policyAt(block.turn, at) : null;
  return html`<p class="about" aria-live=${spoken ? "polite" : "off"}><b>#${at}</b> id <b>${sequence.ids[at]}</b> ${!gap && html`<code>${JSON.stringify(text.slice(starts[at - block.from], starts[at - block.from + 1]))}</code>`}
    ${sequence.mask[at] ? html`logp <b>${signed(logprob, 3)}</b> p <b>${Math.exp(logprob).toPrecision(3)}</b>` : ""} ${policy !== null && html`policy <b>${safe(policy)}</b>`} ${sequence.mask[at] ? "trained" : "context"}</p>`;
}

/** The token under a point of the screen, or null. */
function pointed(event, blocks, texts) {
  const place = placeAt(event.clientX, event.clientY);
  /** @type {HTMLElement|null|undefined} */
  const holder = place?.node.parentElement?.closest("[data-block]");
  if (!holder) return null;
  const block = Number(holder.dataset.block);
  let offset = place.offset;
  for (let node = place.node.parentElement === holder ? place.node.previousSibling : place.node.parentElement.previousSibling; node; node = node.previousSibling) offset += node.textContent.length;
  const { starts } = texts[block];
  let [low, high] = [0, starts.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (starts[middle] <= offset) low = middle;
    else high = middle;
  }
  return blocks[block].from + low;
}

/** Colours the strip; the browser draws them, the document stays as it is. */
function useColours(strip, blocks, texts, colours) {
  useLayoutEffect(() => {
    if (!drawable()) return undefined;
    const nodes = [...strip.current.querySelectorAll("[data-block]")].map((element) => element.firstChild);
    coloured(blocks, texts, colours, nodes);
    return clear;
  }, [blocks, texts, colours]);
}

/** Arrow keys move from token to token. `now` holds the token: keys come faster than pictures. */
function useArrows(size, now, move) {
  useEffect(() => {
    const pressed = (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by || event.target.matches("input, textarea, select") || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      move(now.current === null ? 0 : Math.max(0, Math.min(size - 1, now.current + by)));
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [size, move]);
}

/** @param {{sequence: Sequence, turns: any[]|null, pieces: any[]|null, by: string}} props */
function Strip({ sequence, turns, pieces, by }) {
  const strip = useRef(null);
  const [at, show] = useState(null);
  const now = useRef(null);
  const set = (next) => show((now.current = next));
  const [spoken, speak] = useState(false);
  const blocks = useMemo(() => blocksOf(sequence, turns), [sequence, turns]);
  const texts = useMemo(() => textsOf(sequence, blocks, pieces), [sequence, blocks, pieces]);
  const policies = useMemo(() => versions(turns), [turns]);
  const colours = useMemo(() => { const paint = painter(by, sequence, policies); return blocks.map((block) => runs(block, paint)); }, [by, sequence, blocks, policies]);
  const body = useMemo(() => blocks.map((block, n) => html`<${Block} block=${block} text=${texts[n]} sequence=${sequence} at=${n} colours=${colours[n]} />`), [blocks, texts, drawable() ? null : colours]);
  useColours(strip, blocks, texts, colours);
  const choose = (next, far) => {
    set(next);
    speak(true);
    const place = blocks.findIndex((block) => next >= block.from && next < block.to);
    const holder = strip.current.querySelector(`[data-block="${place}"]`);
    if (far) holder?.scrollIntoView({ block: "center" });
    put(holder, texts[place], next - blocks[place].from);
  };
  useArrows(sequence.ids.length, now, (next) => choose(next, false));
  const hover = (event) => {
    const next = pointed(event, blocks, texts);
    if (next !== null && next !== now.current) { set(next); speak(false); }
  };
  return html`<p class="tools"><button onClick=${() => choose(lowest(sequence), true)}>to the least likely ↓</button>
      <button onClick=${() => copy(JSON.stringify([...sequence.ids]))}>copy ids</button></p>
    <div class="strip" ref=${strip} onMouseMove=${hover}>${body}</div>
    <div class="foot"><${About} sequence=${sequence} blocks=${blocks} texts=${texts} at=${at} spoken=${spoken} /><${Legend} by=${by} turns=${turns} /></div>`;
}

/** The trained token with the lowest log-probability. @param {Sequence} sequence */
function lowest({ mask, logprobs }) {
  let found = 0;
  let least = Infinity;
  for (let at = 0; at < mask.length; at++) if (mask[at] && logprobs[at] < least) [found, least] = [at, logprobs[at]];
  return found;
}

/** Versions of the policy that sampled a token. @param {any[]|null} turns */
const versions = (turns) => [...new Set((turns || []).flatMap((turn) => [turn.policy, ...(turn.spans || []).map(([version]) => version)]))];

/** What the colours mean. @param {{by: string, turns: any[]|null}} props */
function Legend({ by, turns }) {
  if (by === "policy") return html`<p class="legend"><span class="quiet">policy</span> ${versions(turns).map((version, n) => html`<span class=${`tok-p${n % 8}`}>${version === null ? "unknown" : safe(version)}</span> `)}<span class="tok-context">context</span></p>`;
  if (by === "mask") return html`<p class="legend"><span class="tok-trained">trained</span> <span class="tok-context">context</span></p>`;
  const label = (at) => (at === STEPS.length ? `> ${STEPS[at - 1]}` : `≤ ${STEPS[at]}`);
  return html`<p class="legend"><span class="quiet">−logp</span> ${[...STEPS, null].map((_, at) => html`<span class=${`tok-${at}`}>${label(at)}</span> `)}<span class="tok-context">context</span></p>`;
}

const COLOURS = [["logp", "−logp"], ["mask", "mask"], ["policy", "policy"]];

/** @param {{sequences: any[], k: number, by: string, as: string, tokenizer: boolean}} props */
const Choices = ({ sequences, k, by, as, tokenizer }) => html`<p class="tools">
  <label>sequence <select value=${k} onChange=${(event) => go(link({ seq: event.target.value }), true)}>${sequences.map((each) => html`<option value=${each.n}>${each.n + 1} of ${sequences.length}${each.branch && each.branch !== "main" ? ` (${safe(each.branch)})` : ""}</option>`)}</select></label>
  <label>colour <select value=${by} onChange=${(event) => go(link({ colour: event.target.value }), true)}>${COLOURS.map(([id, name]) => html`<option value=${id}>${name}</option>`)}</select></label>
  ${tokenizer && html`<label>as <select value=${as} onChange=${(event) => go(link({ as: event.target.value }), true)}><option value="text">text</option><option value="ids">ids</option></select></label>`}</p>`;

/** @param {{id: string, data: any, session: any}} props */
export function Tokens({ id, data, session }) {
  const { params } = useAddress();
  const sequences = data.sequences || [];
  const k = Math.min(Number(params.get("seq") || 0) || 0, Math.max(0, sequences.length - 1));
  const by = COLOURS.some(([name]) => name === params.get("colour")) ? params.get("colour") : "logp";
  const as = session.tokenizer ? params.get("as") || "text" : "ids";
  const path = sequences.length ? `/api/t/${encodeURIComponent(id)}/tokens/${k}` : null;
  const octets = useData(path, { octets: true });
  const turns = useData(path && `${path}/turns`);
  const pieces = useData(path && as === "text" ? `${path}/text` : null);
  const sequence = useMemo(() => octets.data && decode(octets.data), [octets.data]);
  if (!sequences.length) return html`<p class="empty">No token ids were recorded: the endpoint of the model returned none.</p>`;
  if (octets.error) return html`<${Problem} error=${octets.error} />`;
  const facts = sequences[k];
  const ready = sequence && octets.fresh && (turns.data || turns.error) && (as === "ids" || pieces.data || pieces.error);
  return html`<${Choices} sequences=${sequences} k=${k} by=${by} as=${as} tokenizer=${session.tokenizer} />
    <${Facts} of=${[["ids", count(facts.ids)], ["trained", count(facts.trained)], ["mean logp", signed(facts.mean_logprob, 3)], ["least logp", signed(facts.min_logprob, 2)]]} />
    ${ready ? html`<${Strip} key=${`${k} ${as}`} sequence=${sequence} turns=${turns.data?.turns || null} pieces=${as === "text" && !pieces.error ? pieces.data.pieces : null} by=${by} />` : html`<${Waiting} />`}`;
}
