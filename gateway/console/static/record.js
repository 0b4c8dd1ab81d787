// One request's record: why it was answered as it was, and where its time went.

import { fill, h, s, table } from "./dom.js";

const MAX_BARS = 60;
const MAX_CHARS = 32; // of a bar's name: its time shows at any width
const COLOURS = { http: "--muted", queued: "--warn", prefill: "--c4", decode: "--c3" };

export const ms = (value) =>
  value === null || value === undefined ? "" : value < 10 ? `${value.toFixed(2)} ms` : value < 10000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`;
export const usd = (value) => `$${(value ?? 0).toLocaleString("en", { maximumSignificantDigits: 3 })}`;
const percent = (value) => `${Math.round(100 * value)} %`;
const some = (...words) => words.filter(Boolean).join(", ");

const facts = (pairs) =>
  h("dl", { class: "facts" }, pairs.filter(([, value]) => value).map(([name, value]) => [h("dt", null, name), h("dd", null, value)]));

/** A part with a heading, where there are rows. */
const part = (title, columns, rows) => (rows.length ? table(title, columns, rows) : null);

function summary(record) {
  const tokens = record.tokens;
  const drafts = Object.entries(record.drafts).map(([name, each]) => `${name}: ${each.accepted} of ${each.proposed} accepted in ${each.drafts} drafts`);
  return facts([
    ["Status", some(String(record.status), record.error, record.refused_by && `refused by ${record.refused_by}`)],
    ["Model", some(record.model, record.asked !== record.model && record.asked && `asked for ${record.asked}`)],
    ["Failed before", record.failed_models.join(", ")],
    ["Route", record.route],
    ["Rule", record.rule && `${record.rule}${record.rule_name ? ` (${record.rule_name})` : ""}`],
    ["Reason", record.reason],
    ["Predicted gain", typeof record.gain === "number" && record.gain.toFixed(3)],
    ["Cache", some(record.cache, record.cache_guard && `stopped by ${record.cache_guard}`,
      record.cache_probability && `P ${record.cache_probability}`, record.cache_similarity && `similarity ${record.cache_similarity}`)],
    ["Cache entry", record.cache_entry && h("code", null, record.cache_entry)],
    ["Tokens", some(`${tokens.prompt_tokens} in`, tokens.cached_tokens && `${tokens.cached_tokens} of them cached`, tokens.cache_write_tokens && `${tokens.cache_write_tokens} stored`,
      `${tokens.completion_tokens} out`, tokens.reasoning_tokens && `${tokens.reasoning_tokens} of them reasoning`, tokens.is_estimated && "estimated")],
    ["Cost", some(usd(record.cost_usd), tokens.machine_seconds && `${tokens.machine_seconds.toFixed(3)} machine seconds`)],
    ["First token", ms(record.first_token_ms)],
    ["Speed", record.tokens_per_s && `${record.tokens_per_s} tokens/s`],
    ["Drafts", drafts.join("; ")],
    ["Finished by", record.finish_reasons.join(", ")],
    ["Tenant", some(record.tenant, record.key_id && `key ${record.key_id}`)],
    ["Prompt", record.prompt && h("span", { dir: "auto" }, record.prompt)],
  ]);
}

const conditions = (record) =>
  part("Rules that were tried", ["Rule", "Holds", "Condition", "Values"], record.tried.map((each) => [
    each.rule === record.rule && record.rule_name ? `${each.rule} (${record.rule_name})` : each.rule, each.matched === null ? "cannot be evaluated" : each.matched ? "yes" : "no",
    h("code", null, each.condition || "always"),
    Object.entries(each.values).map(([name, value]) => h("div", null, `${name} = ${JSON.stringify(value)}`))]));

const candidates = (record) =>
  part(`Candidates${record.strategy ? `, ${record.strategy}` : ""}`, ["Model", "Value", "Quality", "Price", "Cost", "First token", "Cached"],
    (record.candidates ?? []).map((each) => [
      each.model, record.values?.[each.model]?.toFixed(3) ?? "", each.quality, usd(each.usd), each.cost,
      each.latency_s ? ms(1000 * each.latency_s) : "", percent(each.cached_share)]));

const replicas = (record) =>
  part("Replicas", ["Replica", "First token", "Queue", "Uncached", "Cached", "Chosen"], record.placements.flatMap((placement) =>
    placement.quotes.map((each) => [
      each.replica, each.why_not || ms(1000 * (each.seconds ?? 0)), each.queue_tokens ?? 0, each.uncached_tokens ?? 0, each.cached_tokens ?? 0,
      each.replica === placement.chosen ? placement.reason : ""])));

// `findings` of a row is their number; a record lists them.
const findings = (record) =>
  part("Guardrails", ["Check", "Found", "Followed"], record.findings.map((each) => [each.check, each.kind, each.outcome]));

/** Bars over the request's time. Each has a line for its name, so that it is readable at any width. */
function waterfall(bars) {
  const totalMs = Math.max(bars[0].ms, ...bars.map((bar) => bar.start_ms + bar.ms), 0.001);
  const said = h("p", { class: "muted", "aria-live": "polite" }, "Point at a bar, or go to it with Tab, for its details.");
  const height = 34;
  const shown = bars.slice(0, MAX_BARS).map((bar, at) => {
    const words = some(`${bar.name}: ${ms(bar.ms)}, from ${ms(bar.start_ms)} on`, bar.text);
    const rect = s("rect", { y: at * height + 17, height: 10, rx: 2 });
    rect.style.x = `${(100 * bar.start_ms) / totalMs}%`;
    rect.style.width = `max(2px, ${(100 * bar.ms) / totalMs}%)`;
    rect.style.fill = `var(${COLOURS[bar.name] ?? (bar.name.startsWith("call ") ? "--c2" : "--c1")})`;
    const say = () => fill(said, words);
    return s("g", { tabindex: 0, role: "img", "aria-label": words, onfocus: say, onmouseenter: say },
      s("title", null, words),
      s("text", { x: 12 * bar.depth, y: at * height + 12 }, `${bar.name.length > MAX_CHARS ? `${bar.name.slice(0, MAX_CHARS)}…` : bar.name} · ${ms(bar.ms)}`),
      rect);
  });
  const chart = s("svg", { width: "100%", height: shown.length * height, role: "group", "aria-label": `Waterfall of ${ms(bars[0].ms)}` }, shown);
  return [
    h("h3", null, "Where its time went"), chart, said,
    h("details", null, h("summary", null, `The same ${bars.length} parts as a table`),
      table("Parts of the request's time", ["Part", "From", "Took", "What"], bars.map((bar) => [
        "– ".repeat(bar.depth) + bar.name, ms(bar.start_ms), ms(bar.ms), bar.text]))),
  ];
}

/** An element with all that is known of a request. */
export const details = (record) =>
  h("div", { class: "record" }, summary(record), findings(record), candidates(record), conditions(record), replicas(record),
    record.timeline.length ? waterfall(record.timeline) : null,
    record.is_partial ? h("p", { class: "muted" }, "An engine has not told its part yet: open the request again.") : null);
