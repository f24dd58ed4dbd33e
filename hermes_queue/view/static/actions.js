/** Buttons that act on the queue, never without a second look. Loaded only for the role `operate`. */
import { api, html, say, useEffect, useRef, useState } from "./core.js";
import { Command, Problem, Waiting } from "./show.js";

/**
 * @typedef {object} Action
 * @property {string} name of `POST /api/actions/NAME`
 * @property {string} title on the button
 * @property {Record<string, any>} args
 * @property {string} [confirm] what is to be typed before it is done
 * @property {string} [field] argument that is asked for
 * @property {boolean} [danger]
 */

/** What the action does and to what, in words. @param {Action} action */
const named = ({ title, args }) => [title.replace("…", ""), args.run || args.lane || args.worker || args.trajectory].filter(Boolean).join(" ");

/** A button for each. @param {{of: Action[], done?: () => void}} props */
export function Actions({ of, done }) {
  const [open, set] = useState(null);
  if (!of.length) return null;
  return html`<span class="actions">${of.map((action) => html`<button class=${action.danger ? "danger" : ""} onClick=${() => set(action)}>${action.title}</button>`)}
    ${open && html`<${Dialog} action=${open} close=${() => set(null)} done=${done} />`}</span>`;
}

/** What the action would meet, asked again when its arguments change. */
function useTrial(action, args) {
  const [state, set] = useState({ met: null, command: "", error: null });
  useEffect(() => {
    let current = true;
    api(`/api/actions/${encodeURIComponent(action.name)}`, { body: { ...args, dry_run: true } }).then(
      (found) => current && set({ ...found, error: null }),
      (error) => current && set({ met: null, command: "", error }),
    );
    return () => (current = false);
  }, [JSON.stringify(args)]);
  return state;
}

/** @param {{action: Action, close: () => void, done?: () => void}} props */
function Dialog({ action, close, done }) {
  const dialog = useRef(null);
  const [typed, type] = useState("");
  const [reason, setReason] = useState("");
  const [value, setValue] = useState("");
  const [error, fail] = useState(null);
  const args = action.field ? { ...action.args, [action.field]: value } : action.args;
  const trial = useTrial(action, args);
  useEffect(() => dialog.current.showModal(), []);
  const ready = (!action.confirm || typed === action.confirm) && (!action.field || value) && !trial.error;
  const act = async (event) => {
    event.preventDefault();
    if (!ready) return;
    // Letters may come meanwhile: no more are met than were shown.
    const body = { ...args, reason, confirm: action.confirm ? typed : undefined, met: "q" in args ? trial.met : undefined };
    try {
      const found = await api(`/api/actions/${encodeURIComponent(action.name)}`, { body });
      say(`${named(action)}: ${found?.done ?? ""} done`);
      dialog.current.close();
      done?.();
    } catch (problem) {
      fail(problem);
    }
  };
  return html`<dialog ref=${dialog} onClose=${close} aria-labelledby="act"><form onSubmit=${act}>
    <h2 id="act">${named(action)}?</h2>
    ${(error || trial.error) && html`<${Problem} error=${error || trial.error} />`}
    ${trial.met === null && !trial.error ? html`<${Waiting} />` : html`<p>Meets <b>${trial.met}</b>.</p>`}
    ${trial.command && html`<p><${Command} line=${trial.command} /></p>`}
    ${action.field && html`<label>${action.field} <input value=${value} onInput=${(event) => setValue(event.target.value)} /></label>`}
    <label>Reason <input value=${reason} maxlength="200" onInput=${(event) => setReason(event.target.value)} /></label>
    ${action.confirm && html`<label>Type <b>${action.confirm}</b> to confirm <input value=${typed} autocomplete="off" onInput=${(event) => type(event.target.value)} /></label>`}
    <p class="end"><button type="button" onClick=${() => dialog.current.close()}>Back</button>
      <button class=${action.danger ? "danger" : "main"} disabled=${!ready}>${named(action)}</button></p>
  </form></dialog>`;
}
