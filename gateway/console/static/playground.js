// Chat with a model, adapter or route, or with two side by side, and see why each answered as it did.

import { get, key, post, readEvents, send } from "./api.js";
import { error, field, fill, h } from "./dom.js";
import { details } from "./record.js";
import { curl, python } from "./snippets.js";

export const title = "Playground";
const EFFORTS = ["", "none", "minimal", "low", "medium", "high"];

/** The form's texts survive a change of the tab. */
const kept = { models: ["", ""], columns: 1, system: "", tools: "", schema: "", effort: "", image: "", maxTokens: "512", temperature: "", prompt: "" };

/** The value of a field with JSON; undefined for an empty one. Raises Error with the field's name. */
function json(name) {
  if (!kept[name].trim()) return undefined;
  try {
    return JSON.parse(kept[name]);
  } catch (failure) {
    throw new Error(`${name === "tools" ? "Tools" : "JSON schema"}: ${failure.message}`);
  }
}

function number(label, text) {
  if (text.trim() === "") return undefined;
  if (!Number.isFinite(Number(text))) throw new Error(`${label}: ${text} is no number`);
  return Number(text);
}

/** The body of one request. Raises Error. */
function requestBody(model, turns) {
  const schema = json("schema");
  const body = {
    model,
    messages: [...(kept.system.trim() ? [{ role: "system", content: kept.system }] : []), ...turns],
    tools: json("tools"),
    response_format: schema && { type: "json_schema", json_schema: { name: "answer", schema, strict: true } },
    reasoning_effort: kept.effort || undefined,
    max_completion_tokens: number("Most tokens", kept.maxTokens),
    temperature: number("Temperature", kept.temperature),
    stream: true,
    stream_options: { include_usage: true },
  };
  return Object.fromEntries(Object.entries(body).filter(([, value]) => value !== undefined));
}

/** What the prompt says next: the results of the calls that the answer before made, or a user's turn. */
function nextTurns(turns) {
  const calls = turns.at(-1)?.tool_calls;
  if (calls) return calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: kept.prompt }));
  const image = kept.image.trim();
  const content = image
    ? [{ type: "text", text: kept.prompt }, { type: "image_url", image_url: { url: image } }]
    : kept.prompt;
  return [{ role: "user", content }];
}

/** Calls by index, as their pieces arrive. */
function addCalls(calls, pieces) {
  for (const piece of pieces) {
    const call = (calls[piece.index] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
    call.id ||= piece.id ?? "";
    call.function.name += piece.function?.name ?? "";
    call.function.arguments += piece.function?.arguments ?? "";
  }
}

const facts = (pairs) =>
  h("dl", { class: "facts" }, pairs.filter(([, value]) => value).map(([name, value]) => [h("dt", null, name), h("dd", null, value)]));

/** What the answer's own headers and usage say, for callers that may not read the record. */
function summary(headers, usage, startedMs, firstMs) {
  const seconds = (performance.now() - (firstMs ?? startedMs)) / 1000;
  const header = (name) => headers.get(`x-penstock-${name}`);
  return facts([
    ["Model", header("model")], ["Route", header("route")], ["Reason", header("reason")], ["Cache", header("cache")],
    ["Guardrails", header("guardrails")], ["Ignored", header("ignored-fields")],
    ["First token", firstMs && `${Math.round(firstMs - startedMs)} ms`],
    ["Tokens", usage && `${usage.prompt_tokens} in, ${usage.completion_tokens} out` +
      (usage.completion_tokens > 1 && seconds > 0 ? `, ${(usage.completion_tokens / seconds).toFixed(1)}/s` : "")],
  ]);
}

/** The record of a request that has just ended; null where the key may not read it. */
async function recordOf(id, signal) {
  for (let tries = 0; id && tries < 5; tries++) {
    try {
      return await get(`/admin/requests/${encodeURIComponent(id)}`, signal);
    } catch (failure) {
      if (failure.status !== 404) return null;
      await new Promise((resolve) => setTimeout(resolve, 200)); // it settles after its last byte
    }
  }
  return null;
}

/** Show a text with its findings marked; offsets count code points. */
function showMarks(node, text, marks) {
  const chars = [...text];
  const pieces = [];
  let end = 0;
  for (const each of marks.filter((mark) => mark.end > mark.start)) {
    if (each.start < end) continue;
    pieces.push(chars.slice(end, each.start).join(""),
      h("mark", { title: `${each.check}: ${each.kind}` }, chars.slice(each.start, each.end).join(""),
        h("small", null, ` ${each.kind}`)));
    end = each.end;
  }
  fill(node, pieces, chars.slice(end).join(""));
}

/** Why it was answered so: the request's record, and its findings as marks in the texts. */
async function explain(id, nodes, known, signal) {
  const record = await recordOf(id, signal);
  if (!record) return;
  fill(known, details(record));
  if (!record.findings?.length) return;
  const shown = nodes.filter((node) => node.textContent);
  const texts = shown.map((node) => node.textContent.slice(0, 9000));
  const findings = record.findings.map(({ check, kind }) => ({ check, kind }));
  const { data } = await post("/admin/marks", { texts, findings }, signal);
  data.forEach((marks, index) => marks.length && showMarks(shown[index], shown[index].textContent, marks));
}

/** One column: its model, its conversation, and what is known of each answer. */
function column(number, names, signal) {
  const turns = [];
  let body;
  const log = h("div", { "aria-live": "polite" });
  const model = h("select", { onchange: () => (kept.models[number] = model.value) },
    names.map((name) => h("option", { value: name }, name)));
  model.value = names.includes(kept.models[number]) ? kept.models[number] : (names[number] ?? names[0] ?? "");
  kept.models[number] = model.value;

  async function ask(stop) {
    const startedMs = performance.now();
    const next = nextTurns(turns);
    body = requestBody(model.value, [...turns, ...next]);
    const thought = h("div", { class: "answer reasoning", dir: "auto", hidden: true });
    const text = h("div", { class: "answer", dir: "auto" });
    const calls = [];
    const shownCalls = h("pre", { hidden: true });
    const more = h("div");
    const asked = h("p", { class: "muted answer", dir: "auto" }, kept.prompt);
    log.prepend(h("article", { class: "panel", "aria-label": `Answer of ${model.value}` }, asked, thought, text, shownCalls, more));
    let headers, usage, firstMs, failure;
    const onData = (data) => {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      usage = chunk.usage ?? usage;
      const delta = chunk.choices?.[0]?.delta ?? {};
      const reasoning = delta.reasoning_content ?? delta.reasoning;
      if (reasoning || delta.content || delta.tool_calls) firstMs ??= performance.now();
      if (reasoning) (thought.hidden = false), thought.append(reasoning);
      if (delta.content) text.append(delta.content);
      if (delta.tool_calls) {
        addCalls(calls, delta.tool_calls);
        shownCalls.hidden = false;
        fill(shownCalls, calls.map((call) => `${call.function.name}(${call.function.arguments})\n`));
      }
    };
    try {
      const response = await send("/v1/chat/completions", { method: "POST", body, signal: stop });
      headers = response.headers;
      await readEvents(response, onData);
    } catch (caught) {
      failure = caught;
    }
    const answer = { role: "assistant", content: text.textContent || null, ...(calls.length ? { tool_calls: calls } : {}) };
    if (!failure) turns.push(...next, answer);
    if (calls.length) more.append(h("p", { class: "muted" }, "The next prompt is sent as the result of this call."));
    if (failure && failure.name !== "AbortError") more.append(error(failure.message));
    if (failure?.name === "AbortError") more.append(h("p", { class: "muted" }, "Stopped."));
    headers ??= failure?.headers;
    if (!headers) return;
    const known = h("div", null, summary(headers, usage, startedMs, firstMs));
    more.append(known);
    await explain(headers.get("x-request-id"), [asked, text], known, signal).catch(() => {}); // the answer stands
  }

  const clear = () => { turns.length = 0; body = undefined; fill(log); };
  const root = h("div", null, field("Model, adapter or route", model), log);
  return { root, ask, clear, body: () => (kept.prompt.trim() || !body ? requestBody(model.value, [...turns, ...nextTurns(turns)]) : body) };
}

function bound(control, name) {
  control.value = kept[name];
  control.addEventListener("input", () => (kept[name] = control.value));
  return control;
}

export async function mount(root, signal) {
  let names;
  try {
    names = (await get("/v1/models", signal)).data.filter((each) => each.mode !== "embedding").map((each) => each.id);
  } catch (failure) {
    return failure.name === "AbortError" || fill(root, error(failure.message));
  }
  if (!names.length) return fill(root, h("p", { class: "panel" }, "The policies name no model yet that chats."));
  const grid = h("div", { class: "grid" });
  const state = h("div");
  let columns = [];
  let stop = null;
  const arrange = () => {
    columns = columns.slice(0, kept.columns);
    while (columns.length < kept.columns) columns.push(column(columns.length, names, signal));
    fill(grid, columns.map((each) => each.root));
  };
  const compare = h("input", { type: "checkbox", onchange: () => { kept.columns = compare.checked ? 2 : 1; arrange(); } });
  compare.checked = kept.columns === 2;
  const prompt = bound(h("textarea", { rows: 3, dir: "auto", onkeydown: (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && run(event) }), "prompt");
  const go = h("button", { class: "button" }, "Send");
  const halt = h("button", { type: "button", disabled: true, onclick: () => stop?.abort() }, "Stop");
  const snippet = h("pre", { tabindex: 0, "aria-label": "The request", hidden: true });

  async function run(event) {
    event.preventDefault();
    if (stop || !kept.prompt.trim()) return prompt.focus();
    try {
      columns.forEach((each) => each.body()); // a field that is no JSON stops all
    } catch (failure) {
      return fill(state, error(failure.message));
    }
    fill(state);
    stop = new AbortController();
    signal.addEventListener("abort", () => stop?.abort());
    halt.disabled = false;
    if (document.activeElement === go) halt.focus(); // a disabled button loses it
    go.disabled = true;
    try {
      const asked = columns.map((each) => each.ask(stop.signal)); // each has read the prompt by now
      prompt.value = kept.prompt = "";
      await Promise.all(asked);
    } catch (failure) {
      fill(state, error(failure.message));
    } finally {
      stop = null;
      go.disabled = false;
      if (document.activeElement === halt) go.focus();
      halt.disabled = true;
    }
  }

  function showAs(write) {
    try {
      fill(snippet, columns.map((each) => write(each.body(), Boolean(key()))).join("\n\n"));
      snippet.hidden = false;
    } catch (failure) {
      fill(state, error(failure.message));
    }
  }

  fill(root,
    h("form", { class: "panel", onsubmit: run },
      field("Prompt (Ctrl-Enter sends)", prompt),
      h("div", { class: "row" }, go, halt,
        h("button", { type: "button", onclick: () => columns.forEach((each) => each.clear()) }, "Clear"),
        h("button", { type: "button", onclick: () => showAs(curl) }, "Show as curl"),
        h("button", { type: "button", onclick: () => showAs(python) }, "Show as Python"),
        h("label", null, compare, " Compare two")),
      state, snippet,
      h("details", null, h("summary", null, "System text, tools, schema, reasoning, image"),
        h("div", { class: "grid" },
          field("System text", bound(h("textarea", { dir: "auto" }), "system")),
          field("Tools (JSON)", bound(h("textarea", { class: "code", placeholder: '[{"type": "function", "function": {…}}]' }), "tools")),
          field("JSON schema of the answer", bound(h("textarea", { class: "code", placeholder: '{"type": "object", …}' }), "schema")),
          h("div", null,
            h("div", { class: "row" },
              field("Reasoning effort", bound(h("select", null, EFFORTS.map((each) => h("option", { value: each }, each || "as the model"))), "effort")),
              field("Most tokens", bound(h("input", { inputmode: "numeric" }), "maxTokens")),
              field("Temperature", bound(h("input", { inputmode: "decimal" }), "temperature"))),
            field("Image URL (upstreams)", bound(h("input", { type: "url" }), "image")))))),
    grid);
  arrange();
}
