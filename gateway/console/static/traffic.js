// The tab "Traffic": requests, times and cost in groups and over time; limits, cache, router, guardrails.

import { get, post } from "./api.js";
import { bars, lines, scatter, show } from "./charts.js";
import { error, field, fill, h, table } from "./dom.js";

export const title = "Traffic";
const SINCE = { "1h": "last hour", "24h": "last 24 hours", "7d": "last 7 days", "30d": "last 30 days" };
const BY = ["tenant", "model", "route", "day", "hour", "endpoint"];
const KINDS = { entry: "entry", tenant: "tenant", model: "model", tag: "tag", user: "end user" };
const EMPTY = "No request in this time: send one, or choose a longer time.";

const select = (options, value, onchange) => h("select", { onchange },
  Object.entries(options).map(([name, label]) => h("option", { value: name, selected: name === value }, label)));
const panel = (name, ...children) => h("section", { class: "panel", "aria-label": name }, h("h2", null, name), children);
const named = (name) => name || "(none)";
const orNothing = (caption, columns, rows, empty) =>
  rows.length ? table(caption, columns, rows) : h("p", { class: "muted" }, empty);

function groupTable(found) {
  const columns = [found.by[0].toUpperCase() + found.by.slice(1), "Requests", "Errors", "Input tokens", "Output tokens", "Cost", "Machine seconds",
    "Took p50", "Took p95", "Took p99", "First token p50", "First token p95", "Cache hits"];
  return orNothing(`By ${found.by}`, columns, found.groups.map((each) => [
    named(each.name), show(each.requests), show(each.errors), show(each.input_tokens), show(each.output_tokens), show(each.cost_usd, "usd"),
    show(each.machine_seconds), ...["p50_s", "p95_s", "p99_s", "first_token_p50_s", "first_token_p95_s"].map((name) => show(each[name], "s")),
    show(each.cache_hits)]), EMPTY);
}

/** Series of the busiest groups, and of the rest. */
function stacked(found, at, total) {
  const names = [...new Set(found.series.flatMap((each) => Object.keys(each.groups)))];
  if (!names.length) return [{ name: "all", values: found.series.map((each) => each[total]) }];
  const series = names.map((name) => ({ name: named(name), values: found.series.map((each) => each.groups[name]?.[at] ?? 0) }));
  const rest = found.series.map((each) => Math.max(0, each[total] - Object.values(each.groups).reduce((sum, values) => sum + values[at], 0)));
  return rest.some((each) => each > 1e-9) ? [...series.slice(0, 5), { name: "others", values: rest.map((each, n) =>
    each + (series[5]?.values[n] ?? 0)) }] : series;
}

function charts(found) {
  const labels = found.series.map((each) => each.at.slice(found.step === "day" ? 5 : 11).padEnd(found.step === "hour" ? 2 : 0));
  const times = ["p50_s", "p95_s", "p99_s"].map((name) => ({ name: name.slice(0, 3), values: found.series.map((each) => each[name]) }));
  return h("div", { class: "grid" },
    panel("Requests", bars({ title: `Requests per ${found.step}, UTC`, labels, series: stacked(found, 0, "requests"), empty: EMPTY })),
    panel("Cost", bars({ title: `USD per ${found.step}, UTC`, unit: "usd", labels, series: stacked(found, 1, "cost_usd"),
      empty: "Nothing has cost anything: give the policies' models a `price`." })),
    panel("Time to the end of answers", lines({ title: "Percentiles", unit: "s", labels, series: times, empty: EMPTY })),
    panel("Errors", orNothing("By class", ["Class", "Requests"],
      Object.entries(found.total.errors_by_class).map(([name, count]) => [name, count]), "No request has failed.")));
}

function limits({ limits: rows, limits_cut: isCut, limits_fault: fault }) {
  return panel("Limits", fault && error(`The counts that all workers share cannot be read now: ${fault}`),
    fault && !rows.length ? null : orNothing(isCut ? `What is left: the first ${rows.length}` : "What is left", ["Tenant", "Of", "Limit", "Amount", "Used", "Left", "Begins again in"], rows.map((each) => [
    each.tenant, each.of || "tenant", each.limit, show(each.amount), show(each.used), show(each.left),
    each.resets_in_s === null ? "–" : show(each.resets_in_s, "s")]),
  "No tenant has limits: the policies' `tenants` and `tiers` would set them."));
}

function cachePanel(cache, state, reload) {
  const value = h("input", { required: true, maxlength: 512 });
  const isOperator = cache.is_operator;
  const kind = select(KINDS, "entry"), all = h("input", { type: "checkbox", disabled: !isOperator });
  const invalidate = async (body) => {
    try {
      const done = await post("/v1/cache/invalidate", body);
      const hint = done.invalidated || body.all_tenants || !isOperator ? "" : " This looked at your own tenant: tick “Of all tenants” for the others.";
      fill(state, `${done.invalidated} entries are forgotten.${hint}`);
      await reload();
    } catch (failure) {
      fill(state, error(failure.message));
    }
  };
  const submit = (event) => {
    event.preventDefault();
    return invalidate({ [kind.value]: value.value, all_tenants: all.checked });
  };
  const forget = (each) => h("button", { type: "button", "aria-label": `Invalidate ${each.entry}`, disabled: !isOperator && each.tenant !== cache.tenant,
    onclick: () => invalidate({ entry: each.entry, all_tenants: isOperator }) }, "Invalidate");
  return panel("Cache",
    h("p", null, `Hit ratio ${show(cache.hit_ratio, "%")} · ${show(cache.entries, "entries")} in this worker, ${show(cache.bytes, "bytes")}`),
    orNothing("Look-ups since the start", ["Outcome", "Requests"], Object.entries(cache.outcomes), "No request has asked the cache."),
    orNothing("False hits among those judged", ["Model", "Share", "95 % interval", "Tightened"], cache.false_hits.map((each) => [
      each.model, show(each.mean, "%"), `${show(each.low, "%")} to ${show(each.high, "%")}`, each.level]),
    "No hit was judged: /v1/cache/feedback and the policies' sampling do that."),
    orNothing("Entries served most often, in this worker", ["Entry", "Tenant", "Model", "Hits", "Judged wrong", "Size", "Age", "Invalidate"], cache.top.map((each) => [
      each.entry.slice(0, 12), each.tenant, each.model, each.hits, each.wrong, show(each.bytes, "bytes"), show(each.age_s, "s"), forget(each)]),
    "Nothing is stored."),
    isOperator ? null : h("p", { class: "muted" }, `You may invalidate entries of ${cache.tenant}; for those of other tenants add it to the policies' cache.operators.`),
    h("form", { onsubmit: submit }, h("div", { class: "row" }, field("Forget what is of", kind), field("Which", value),
      field("Of all tenants", all), h("button", { class: "button" }, "Invalidate"))), state);
}

function router({ shares, quality }) {
  const sum = shares.reduce((total, each) => total + each.requests, 0);
  const points = quality.filter((each) => each.quality !== null && each.usd_per_request !== null)
    .map((each) => ({ name: `${each.model} (${each.rule})`, x: each.usd_per_request, y: each.quality }));
  return panel("Router",
    orNothing("Who answers", ["Route", "Model", "Requests", "Share", "Cost"], shares.map((each) => [
      named(each.route), named(each.model), show(each.requests), show(each.requests / sum, "%"), show(each.cost_usd, "usd")]), EMPTY),
    scatter({ title: "Candidates", x: { label: "cost of a request", unit: "usd" }, y: { label: "quality by feedback", unit: "%" }, points,
      empty: "No candidate of a `choose` was judged: POST /v1/feedback does that." }));
}

const guardrails = (rows) => panel("Guardrails", orNothing("Verdicts since the start", ["Check", "Outcome", "Language", "Count"],
  rows.map((each) => [each.check, each.outcome, each.language || "–", each.count]),
  "No guardrail has found anything: the policies' `guardrails` say what they look for."));

export function mount(root, signal) {
  const asked = { since: "24h", by: "model" }, body = h("div", { "aria-live": "off" });
  const said = h("div", { role: "status" }); // outlives a reload
  const reload = async () => {
    try {
      const found = await get(`/admin/traffic?${new URLSearchParams(asked)}`, signal);
      fill(body, found.note && h("p", { class: "warn" }, found.note),
        found.series.length ? charts(found) : null, panel("Groups", groupTable(found)), limits(found),
        h("div", { class: "grid" }, router(found.router), guardrails(found.guardrails)), cachePanel(found.cache, said, reload));
    } catch (failure) {
      if (!signal.aborted) fill(body, error(failure.message));
    }
  };
  const choose = (name) => (event) => {
    asked[name] = event.target.value;
    reload();
  };
  fill(root, h("div", { class: "row" }, field("Time", select(SINCE, asked.since, choose("since"))),
    field("Group by", select(Object.fromEntries(BY.map((each) => [each, each])), asked.by, choose("by"))),
    h("button", { type: "button", onclick: reload }, "Reload")), body);
  reload();
}
