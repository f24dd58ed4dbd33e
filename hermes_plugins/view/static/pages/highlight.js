/** Colours in a text without elements: the CSS Custom Highlight API, where the browser has it. */

/** @returns {boolean} */
export const drawable = () => typeof Highlight === "function" && Boolean(globalThis.CSS?.highlights);

const drawn = new Set();

/** Take all colours away. */
export function clear() {
  for (const name of drawn) CSS.highlights.delete(name);
  drawn.clear();
}

/**
 * Colour the tokens of all blocks.
 * @param {any[]} blocks
 * @param {any[]} texts
 * @param {[string, number, number][][]} colours of each block
 * @param {(ChildNode|null)[]} nodes the text node of each block
 */
export function coloured(blocks, texts, colours, nodes) {
  clear();
  /** @type {Map<string, StaticRange[]>} */
  const ranges = new Map();
  blocks.forEach((block, n) => {
    const node = nodes[n];
    if (!node) return;
    const { starts, gap } = texts[n];
    for (const [name, from, to] of colours[n]) {
      const range = new StaticRange({ startContainer: node, startOffset: starts[from - block.from], endContainer: node, endOffset: Math.max(0, starts[to - block.from] - gap) });
      if (!ranges.has(name)) ranges.set(name, []);
      ranges.get(name).push(range);
    }
  });
  for (const [name, found] of ranges) draw(name, found);
}

/** @param {string} name @param {AbstractRange[]} ranges */
function draw(name, ranges) {
  const highlight = new Highlight();
  for (const range of ranges) highlight.add(range);
  CSS.highlights.set(name, highlight);
  drawn.add(name);
}

/** Mark one token of a block, and bring it into view. @param {Element|null} holder @param {any} text @param {number} at */
export function put(holder, text, at) {
  const node = holder?.firstChild;
  if (!node || !drawable() || node.nodeType !== Node.TEXT_NODE) return;
  const range = new Range();
  range.setStart(node, text.starts[at]);
  range.setEnd(node, Math.max(text.starts[at], text.starts[at + 1] - text.gap));
  draw("tok-current", [range]);
  CSS.highlights.get("tok-current").priority = 1;
  const box = range.getBoundingClientRect();
  if (box.top < 80 || box.bottom > innerHeight - 60) scrollBy({ top: box.top - innerHeight / 2 });
}

/** The place in a text under a point of the screen. @param {number} x @param {number} y */
export function placeAt(x, y) {
  const position = document.caretPositionFromPoint?.(x, y);
  if (position) return { node: position.offsetNode, offset: position.offset };
  const range = document.caretRangeFromPoint?.(x, y);
  return range ? { node: range.startContainer, offset: range.startOffset } : null;
}
