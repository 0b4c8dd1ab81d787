// The playground's request as a command and as a program.

import { BASE } from "./api.js";

const shellQuoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** A Python literal. */
export function literal(value, indent = "    ") {
  const inner = `${indent}    `;
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return value.length ? `[\n${value.map((each) => inner + literal(each, inner)).join(",\n")},\n${indent}]` : "[]";
  if (typeof value === "object") {
    const items = Object.entries(value).map(([name, each]) => `${inner}${JSON.stringify(name)}: ${literal(each, inner)}`);
    return items.length ? `{\n${items.join(",\n")},\n${indent}}` : "{}";
  }
  return JSON.stringify(value); // whose escapes are Python's, too
}

/** The same request for a shell. */
export const curl = (body, hasKey) => [
  `curl -N ${BASE}/v1/chat/completions`,
  ...(hasKey ? ['  -H "Authorization: Bearer $PENSTOCK_API_KEY"'] : []),
  "  -H 'Content-Type: application/json'",
  `  -d ${shellQuoted(JSON.stringify(body, null, 2))}`,
].join(" \\\n");

/** The same request with OpenAI's SDK. */
export const python = (body, hasKey) => `${hasKey ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url="${BASE}/v1", api_key=${hasKey ? 'os.environ["PENSTOCK_API_KEY"]' : '"none"'})
stream = client.chat.completions.create(
${Object.entries(body).map(([name, value]) => `    ${name}=${literal(value)},`).join("\n")}
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
`;
