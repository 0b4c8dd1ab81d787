// The tab "Live": engines, upstream targets and workers, from a snapshot each second.

import { events } from "./api.js";
import { show, sparkline } from "./charts.js";
import { error, fill, h, table } from "./dom.js";

export const title = "Live";
const KEPT = 180; // seconds of the small charts

const tone = (phase) => (phase === "ready" ? "good" : /^(asleep|starting|loading|warming_up|draining)/.test(phase) ? "warn" : "bad");
const badge = (phase) => h("span", { class: `badge ${tone(phase)}` }, phase);
const drafts = (each) => `${each.name}: ${show(each.accepted)} of ${show(each.proposed)} (${show(each.proposed ? each.accepted / each.proposed : null, "%")})`;

/** A table whose rows change in place: it keeps the focus, and how far it is scrolled. */
function changing(caption, columns, empty) {
  const node = table(caption, columns, []), body = node.querySelector("tbody");
  const set = (rows) => fill(body, rows.length ? rows.map((row) => h("tr", null,
    row.map((cell) => h("td", { class: typeof cell === "number" ? "num" : undefined }, cell))))
    : h("tr", null, h("td", { colspan: columns.length, class: "muted" }, empty)));
  return { node, set };
}

function card(engine, history) {
  const facts = [
    ["Running", `${engine.running} of ${engine.max_running}`],
    ["Waiting", engine.waiting],
    ["Queue", show(engine.queue_s, "s")],
    ["Pages", `${engine.pages_used} of ${engine.pages_total} (${show(engine.pages_total ? engine.pages_used / engine.pages_total : null, "%")})`],
    ["Prefix hits", show(engine.prefix_hit_share, "%")],
    ["Tokens per step", show(engine.tokens_per_step)],
    ["Drafts accepted", engine.drafters.length ? engine.drafters.map(drafts).join("; ") : "none"],
    ["Adapters", engine.adapters.length ? `${engine.adapters.join(", ")} (${engine.adapters_on_device} on the device)` : "none"],
  ];
  const chart = (name, label) => h("div", null,
    h("div", null, `${label} ${show(engine[name], "tokens/s")}`),
    sparkline(history.map((each) => each[name]), `${label} tokens per second in the last ${history.length} s`));
  return h("div", { class: "panel" },
    h("h2", null, `${engine.name} · ${engine.place || engine.replica} `, badge(engine.phase)),
    h("div", { class: "row" }, chart("output_tokens_per_s", "Out"), chart("input_tokens_per_s", "In")),
    h("dl", { class: "facts" }, facts.map(([name, value]) => [h("dt", null, name), h("dd", null, value)])));
}

export function mount(root, signal) {
  const histories = new Map();
  const cards = h("div", { class: "grid" }), state = h("div"), line = h("p", { class: "muted" });
  const targets = changing("Upstream targets", ["Model", "Target", "State", "Running", "Errors (10 s)", "To first content", "Asked again in"],
    "No upstream is configured: add a model with `upstream` to the policies.");
  const workers = changing("Workers", ["Worker", "Process", "In flight", "Up for", "Policies", "Cache entries"], "None.");
  const encoders = changing("Encoders", ["Name", "State"], "No encoder is configured.");
  let isPaused = false;
  const pause = h("button", { type: "button", "aria-pressed": "false", onclick: () => {
    isPaused = !isPaused;
    pause.setAttribute("aria-pressed", isPaused);
    fill(pause, isPaused ? "Go on" : "Pause");
  } }, "Pause");
  fill(root, h("div", { class: "row" }, h("h1", null, "Live"), pause), state, line, cards,
    [targets, encoders, workers].map((each) => h("div", { class: "panel" }, each.node)));

  const onEvent = (now) => {
    if (now.error) throw new Error(now.error.message); // the policies have changed
    for (const engine of now.engines) {
      const name = `${engine.name} ${engine.replica}`;
      histories.set(name, [...(histories.get(name) ?? []), engine].slice(-KEPT));
    }
    if (isPaused) return;
    fill(state);
    fill(line, `Policies ${now.policy.slice(0, 12) || "–"} · Penstock ${now.release} · told by worker ${now.worker}`);
    fill(cards, now.engines.length ? now.engines.map((each) => card(each, histories.get(`${each.name} ${each.replica}`)))
      : h("p", { class: "muted" }, "No engine is configured: add a model with `engine` to the policies."));
    targets.set(now.targets.map((each) => [each.model, each.place, badge(each.state), each.running,
      show(each.error_share, "%"), show(each.latency_s, "s"), each.cooldown_s ? show(each.cooldown_s, "s") : "–"]));
    encoders.set(now.encoders.map((each) => [each.name, badge(each.phase || (each.ready ? "ready" : "away"))]));
    workers.set(now.workers.map((each) => [each.number, each.pid, each.in_flight, each.uptime_s === null ? "ended" : show(each.uptime_s, "s"),
      each.policy === null ? h("span", { class: "badge bad" }, "does not answer") : each.policy.slice(0, 12) || "–", show(each.cache_entries)]));
  };
  events("/admin/live", onEvent, signal, (failure) => fill(state, error(failure.message)));
}
