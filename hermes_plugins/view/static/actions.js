/** Buttons that act on the queue, never without a second look. Loaded only for the role `operate`. */
import { api, html, say, useEffect, useRef, useState } from "./core.js";
import { Command, Problem, Waiting } from "./show.js";

/**
 * @typedef {object} Field an argument that is asked for
 * @property {string} name
 * @property {string} title
 * @property {string} [hint] in the empty field
 * @property {[string, string][]} [of] the values that may be chosen, and how they are called
 * @property {boolean} [wanted] without it nothing is asked
 */

/**
 * @typedef {object} Action
 * @property {string} name of `POST /api/actions/NAME`
 * @property {string} title on the button
 * @property {Record<string, any>} args
 * @property {string} [confirm] what is to be typed before it is done
 * @property {Field[]} [fields]
 * @property {boolean} [danger]
 */

/** What the server can do, and what that means. @type {Map<string, string>} */
let known = new Map();

/** Ask what the server can do. */
export async function learn() {
  const { actions } = await api("/api/actions");
  known = new Map(actions.map(({ name, help }) => [name, help]));
}

/** What the action does and to what, in words. @param {Action} action */
const named = ({ title, args }) => [title.replace("…", ""), args.run || args.lane || args.worker || args.trajectory || args.ids?.join(" ")].filter(Boolean).join(" ");

/** What is met, in words. @param {Action} action @param {number} n */
function met({ name }, n) {
  if (name.startsWith("dead")) return `dead letter${n === 1 ? "" : "s"}`;
  if (name.startsWith("lane")) return `waiting job${n === 1 ? "" : "s"}`;
  return n === 1 ? "trajectory" : "trajectories";
}

/** A button for each that the server can do. @param {{of: Action[], done?: () => void}} props */
export function Actions({ of, done }) {
  const [open, set] = useState(null);
  const can = of.filter(({ name }) => known.has(name));
  if (!can.length) return null;
  return html`<span class="actions">${can.map((action) => html`<button class=${action.danger ? "danger" : ""} title=${known.get(action.name)} onClick=${() => set(action)}>${action.title}</button>`)}
    ${open && html`<${Dialog} action=${open} close=${() => set(null)} done=${done} />`}</span>`;
}

/** What the action would meet, asked again when its arguments change. @param {Action} action @param {any} args null: something is missing */
function useTrial(action, args) {
  const [state, set] = useState({ met: null, command: "", error: null });
  useEffect(() => {
    let current = true;
    if (args) {
      api(`/api/actions/${encodeURIComponent(action.name)}`, { body: { ...args, dry_run: true } }).then(
        (found) => current && set({ ...found, error: null }),
        (error) => current && set({ met: null, command: "", error }),
      );
    } else set({ met: null, command: "", error: null });
    return () => (current = false);
  }, [JSON.stringify(args)]);
  return state;
}

/** All arguments, or null while none is given that must be. @param {Action} action @param {Record<string, string>} values */
function given({ args, fields = [] }, values) {
  const filled = fields.filter(({ name }) => values[name]).map(({ name }) => [name, values[name]]);
  const wanted = fields.filter((field) => field.wanted);
  if (wanted.length && !wanted.some(({ name }) => values[name])) return null;
  return { ...args, ...Object.fromEntries(filled) };
}

/** @param {{field: Field, value: string, set: (value: string) => void}} props */
const Input = ({ field, value, set }) => html`<label>${field.title} ${field.of
  ? html`<select value=${value} onChange=${(event) => set(event.target.value)}>${field.of.map(([id, title]) => html`<option value=${id}>${title}</option>`)}</select>`
  : html`<input value=${value} placeholder=${field.hint || ""} autocomplete="off" onInput=${(event) => set(event.target.value.trim())} />`}</label>`;

/** @param {{action: Action, close: () => void, done?: () => void}} props */
function Dialog({ action, close, done }) {
  const dialog = useRef(null);
  const [typed, type] = useState("");
  const [reason, setReason] = useState("");
  const [values, setValues] = useState({});
  const [error, fail] = useState(null);
  const [busy, setBusy] = useState(false);
  const args = given(action, values);
  const trial = useTrial(action, args);
  useEffect(() => dialog.current.showModal(), []);
  const ready = args && trial.met !== null && (!action.confirm || typed === action.confirm);
  const act = async (event) => {
    event.preventDefault();
    if (!ready || busy) return;
    setBusy(true);
    // Letters may come meanwhile: no more are met than were shown.
    const body = { ...args, reason, confirm: action.confirm ? typed : undefined, met: "q" in args ? trial.met : undefined };
    try {
      const found = await api(`/api/actions/${encodeURIComponent(action.name)}`, { body });
      say(`${named(action)}: ${found?.done ?? ""} done${found?.done < found?.met ? ` of ${found.met}; press it again for the rest` : ""}`);
      dialog.current.close();
      done?.();
    } catch (problem) {
      fail(problem);
      setBusy(false);
    }
  };
  return html`<dialog ref=${dialog} onClose=${close} aria-labelledby="act"><form onSubmit=${act}>
    <h2 id="act">${named(action)}?</h2>
    <p class="quiet">${known.get(action.name)}</p>
    ${(error || trial.error) && html`<${Problem} error=${error || trial.error} />`}
    ${(action.fields || []).map((field) => html`<${Input} key=${field.name} field=${field} value=${values[field.name] || ""} set=${(value) => setValues({ ...values, [field.name]: value })} />`)}
    ${trial.met !== null ? html`<p>Meets <b>${trial.met}</b> ${met(action, trial.met)}.</p>` : args && !trial.error && html`<${Waiting} />`}
    ${trial.command && html`<p><${Command} line=${trial.command} /></p>`}
    <label key="reason">Reason <input value=${reason} maxlength="200" placeholder="kept with the action, and in the log" onInput=${(event) => setReason(event.target.value)} /></label>
    ${action.confirm && html`<label key="confirm">Type <b>${action.confirm}</b> to confirm <input value=${typed} autocomplete="off" onInput=${(event) => type(event.target.value)} /></label>`}
    <p class="end" key="end"><button type="button" onClick=${() => dialog.current.close()}>Back</button>
      <button class=${action.danger ? "danger" : "main"} disabled=${!ready || busy}>${named(action)}</button></p>
  </form></dialog>`;
}
