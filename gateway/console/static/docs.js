// The reference of the API, read from /openapi.json.

import { BASE, get, key, setKey } from "./api.js";
import { error, field, fill, h, table } from "./dom.js";

const main = document.getElementById("main");
const METHODS = ["get", "post", "delete"];
let api;

const found = (schema) => (schema?.$ref ? api.components.schemas[schema.$ref.split("/").pop()] : schema) ?? {};

/** The type of a field in words, with its bounds. */
function typeOf(schema) {
  const kinds = schema.anyOf?.map(typeOf).filter((each) => each !== "null");
  if (kinds) return [...new Set(kinds)].join(" or ");
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" or ");
  if (schema.$ref) return schema.$ref.split("/").pop();
  const [least, most] = [schema.minimum ?? schema.minLength ?? schema.minItems, schema.maximum ?? schema.maxLength ?? schema.maxItems];
  const bounds = [least !== undefined && `≥ ${least}`, most !== undefined && `≤ ${most}`].filter(Boolean).join(", ");
  const kind = schema.items?.type || schema.items?.$ref ? `${schema.type} of ${typeOf(schema.items)}` : schema.type ?? "any";
  return bounds ? `${kind} (${bounds})` : kind;
}

/** An example of a body: its own, else its required fields. */
function exampleOf(content) {
  if (content.example) return content.example;
  const schema = found(content.schema);
  const values = { string: "…", integer: 1, number: 1, boolean: true, array: [], object: {} };
  return Object.fromEntries((schema.required ?? []).map((name) => {
    const of = schema.properties[name];
    return [name, of.enum?.[0] ?? values[of.type] ?? values[of.anyOf?.[0].type] ?? null];
  }));
}

function curl(method, path, operation) {
  const lines = [`curl ${BASE}${path.replaceAll("{", "$").replaceAll("}", "")}`];
  if (method === "delete") lines[0] += " -X DELETE";
  if (!operation.security) lines.push("-H \"Authorization: Bearer $PENSTOCK_API_KEY\"");
  const content = operation.requestBody?.content ?? {};
  if (content["multipart/form-data"]) lines.push("-F purpose=batch -F file=@requests.jsonl");
  if (content["application/json"]) {
    const text = JSON.stringify(exampleOf(content["application/json"])).replaceAll("'", "'\\''");
    lines.push("-H 'Content-Type: application/json'", `-d '${text}'`);
  }
  return lines.join(" \\\n  ");
}

function fields(schema) {
  const rows = Object.entries(schema.properties ?? {}).map(([name, each]) =>
    [h("code", null, name), typeOf(each), schema.required?.includes(name) ? "yes" : "", each.description ?? ""]);
  return rows.length > 0 && table("Fields of the body", ["Field", "Type", "Required", "Meaning"], rows);
}

function parameters(operation) {
  const all = operation.parameters.map((each) => (each.$ref ? api.components.parameters[each.$ref.split("/").pop()] : each));
  const rows = all.map((each) => [h("code", null, each.name), each.in, each.required ? "yes" : "", each.description ?? ""]);
  return rows.length > 0 && table("Parameters", ["Name", "In", "Required", "Meaning"], rows);
}

/** One endpoint; its content is built when it is first opened. */
function endpoint(method, path, operation) {
  const node = h("details", { class: "panel", dataset: { text: `${method} ${path} ${operation.tags} ${operation.summary}`.toLowerCase() } },
    h("summary", null, h("strong", null, method.toUpperCase()), " ", h("code", null, path), h("span", { class: "muted" }, ` ${operation.summary}`)));
  node.addEventListener("toggle", () => {
    const body = operation.requestBody?.content["application/json"] ?? operation.requestBody?.content["multipart/form-data"];
    const streams = Object.keys(operation.responses["200"].content).join(", ");
    node.append(...[
      operation.description && h("p", null, operation.description),
      h("pre", { tabindex: 0, "aria-label": "Example" }, curl(method, path, operation)),
      parameters(operation), body && fields(found(body.schema)), h("p", { class: "muted" }, `Answers: ${streams}`),
    ].filter(Boolean));
  }, { once: true });
  return node;
}

function show() {
  const all = Object.entries(api.paths).flatMap(([path, of]) => METHODS.filter((each) => of[each]).map((each) => [each, path, of[each]]));
  const groups = api.tags.map(({ name }) => h("section", null, h("h2", null, name),
    all.filter(([, , operation]) => operation.tags[0] === name).map((each) => endpoint(...each))));
  const search = h("input", { type: "search", spellcheck: "false" });
  const count = h("p", { class: "muted", role: "status" });
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/);
    const nodes = groups.flatMap((group) => [...group.querySelectorAll("details")]);
    for (const node of nodes) node.hidden = !words.every((word) => node.dataset.text.includes(word));
    for (const group of groups) group.hidden = !group.querySelector("details:not([hidden])");
    fill(count, `${nodes.filter((node) => !node.hidden).length} of ${nodes.length} endpoints`);
  };
  search.addEventListener("input", filter);
  fill(main, h("h1", null, "API"), field("Search", search), count, groups,
    h("section", { class: "panel" }, h("h2", null, "Errors"), h("pre", null, api.info.description)));
  filter();
}

async function load() {
  try {
    api = await get("/openapi.json");
  } catch (failure) {
    const input = h("input", { type: "password", autocomplete: "off", value: key() });
    const enter = (event) => (event.preventDefault(), setKey(input.value.trim()), load());
    fill(main, h("form", { class: "panel narrow", onsubmit: enter }, h("h1", null, "API key"), field("Key", input),
      error(failure.message), h("button", { class: "button" }, "Read the API")));
    return;
  }
  show();
}

load();
