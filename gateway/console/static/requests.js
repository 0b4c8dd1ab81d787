// Requests that run, with a button to cancel each, and the last ones of all workers.

import { get, post } from "./api.js";
import { error, field, fill, h, table } from "./dom.js";
import { details, ms, usd } from "./record.js";

export const title = "Requests";
const PATH = "/admin/requests";
const POLL_MS = 2000;

const keyOf = (row) => JSON.stringify([row.tenant, row.id]);
const urlOf = (row, action = "") => `${PATH}/${encodeURIComponent(row.id)}${action}?${new URLSearchParams({ tenant: row.tenant })}`;
const at = (seconds) => new Date(1000 * seconds).toLocaleTimeString();
const cell = (text, props) => h("td", props, text);
const num = { class: "num" };

/** What workers did not answer, for the reader to know that rows may lack. */
const missing = (found) =>
  found.missing_workers.length ? `Workers ${found.missing_workers.join(", ")} did not answer: their requests are not shown.` : "";

export function mount(root, signal) {
  const running = h("div");
  const last = h("div");
  const shown = h("div", { "aria-live": "polite" });
  const state = h("div");
  const failed = h("div"); // what was asked for: the next poll leaves it there
  const text = h("input", { type: "search", oninput: () => list() });
  const status = h("select", { onchange: () => list() },
    [["", "any"], ["2", "2xx"], ["4", "4xx"], ["5", "5xx"]].map(([value, name]) => h("option", { value }, name)));
  const order = h("select", { onchange: () => list() },
    [["monotonic_s", "newest"], ["duration_ms", "slowest"], ["first_token_ms", "latest first token"], ["cost_usd", "dearest"]].map(([value, name]) => h("option", { value }, name)));
  const away = h("div");
  let rows = null;
  let isStale = false; // the table waits with them, as long as it has the focus
  let known = null; // keys of those that run, as the table shows them
  let cells = new Map();

  const say = (place, message) => place.textContent === message || fill(place, message && error(message)); // once
  const trying = (action, place) => async (...given) => {
    try {
      await action(...given);
      say(place, "");
    } catch (failure) {
      if (failure.name !== "AbortError") say(place, failure.message);
    }
  };

  const open = trying(async (row, button) => {
    const record = await get(urlOf(row), signal);
    const heading = h("h2", { tabindex: -1 }, `Request ${row.id}`);
    const close = () => (fill(shown), (button.isConnected ? button : text).focus());
    fill(shown, h("article", { class: "panel" },
      h("div", { class: "row" }, heading, h("button", { type: "button", onclick: close }, "Close")), details(record)));
    heading.focus();
  }, failed);

  const cancel = trying(async (row, button) => {
    button.disabled = true;
    await post(urlOf(row, "/cancel"), {}, signal);
    await poll();
    if (document.activeElement === document.body) running.firstChild.focus(); // its row has gone
  }, failed);

  function list() {
    if (!rows) return;
    isStale = false;
    const words = text.value.trim().toLowerCase();
    const fits = rows.filter((row) => String(row.status).startsWith(status.value) &&
      (!words || [row.id, row.tenant, row.model, row.asked, row.route, row.endpoint, row.error, row.refused_by, row.cache].join(" ").toLowerCase().includes(words)))
      .sort((one, other) => (other[order.value] ?? 0) - (one[order.value] ?? 0));
    const left = last.firstChild?.scrollLeft;
    fill(last, table(`The last requests: ${fits.length} of ${rows.length}`,
      ["Request", "Ended", "Tenant", "Model", "Status", "Cache", "Tokens", "Cost", "Took"],
      !fits.length ? [h("tr", null, cell(rows.length ? "None of them fits the filter." : "No request has ended yet.", { colspan: 9, class: "muted" }))] : fits.map((row) => h("tr", null,
        cell(h("button", { type: "button", onclick: (event) => open(row, event.currentTarget) }, row.id.slice(0, 20))),
        cell(at(row.ended_s)), cell(row.tenant), cell(row.model || row.asked),
        cell(h("span", { class: row.status < 400 ? "good" : "bad" }, `${row.status} ${row.refused_by ? `refused by ${row.refused_by}` : row.error}`)), cell(row.cache),
        cell(`${row.input_tokens} → ${row.output_tokens}`, num), cell(usd(row.cost_usd), num), cell(ms(row.duration_ms), num)))));
    last.firstChild.scrollLeft = left;
  }

  function showRunning(found) {
    const keys = found.data.map(keyOf).join("\n");
    if (keys !== known) { // else the rows stay, and a button keeps the focus
      known = keys;
      cells = new Map(found.data.map((row) => [keyOf(row), [cell(""), cell("", num), cell("", num)]]));
      fill(running, table(`In flight: ${found.data.length}`, ["Request", "Tenant", "Model", "Endpoint", "Phase", "Tokens", "Since", "End it"],
        !found.data.length ? [h("tr", null, cell("No request runs now.", { colspan: 8, class: "muted" }))] : found.data.map((row) => {
          const button = h("button", { type: "button", "aria-label": `Cancel ${row.id}`, onclick: () => cancel(row, button) }, "Cancel");
          return h("tr", null, cell(row.id.slice(0, 20)), cell(row.tenant), cell(row.model), cell(row.endpoint), cells.get(keyOf(row)), cell(button));
        })));
    }
    for (const row of found.data) {
      const [phase, tokens, since] = cells.get(keyOf(row));
      fill(phase, row.phase), fill(tokens, row.output_tokens), fill(since, ms(row.elapsed_ms));
    }
  }

  async function load() {
    const found = await get(PATH, signal);
    isStale ||= !rows || found.data[0]?.monotonic_s !== rows[0]?.monotonic_s;
    rows = found.data;
    if (isStale && !last.contains(document.activeElement)) list();
    say(away, missing(found));
  }

  const poll = trying(async () => {
    showRunning(await get(`${PATH}/in-flight`, signal));
    await load();
  }, state);

  async function watch() {
    if (!document.hidden) await poll();
    if (!signal.aborted) timer = setTimeout(watch, POLL_MS);
  }
  let timer = setTimeout(watch);
  signal.addEventListener("abort", () => clearTimeout(timer));

  fill(root,
    h("div", { class: "panel" }, state, running), failed, shown,
    h("div", { class: "panel" },
      h("div", { class: "row" }, field("Filter by id, tenant, model, route, error", text), field("Status", status), field("Order", order),
        h("button", { type: "button", onclick: () => list() }, "Refresh")),
      away, last),
  );
}
