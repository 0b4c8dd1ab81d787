// Requests to the gateway. The key is kept for the tab, and travels in a header only.

const KEY = "penstock-key";
export const BASE = new URL("../", import.meta.url).href.replace(/\/$/, "");

export const key = () => sessionStorage.getItem(KEY) ?? "";
export function setKey(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

/** An error of the gateway, in OpenAI's shape. */
export class ApiError extends Error {
  constructor(message, status, code, headers) {
    super(message);
    Object.assign(this, { status, code, headers });
  }
}

/** What the page waits for shows as a line at its top, after a moment. */
let pending = 0;
const wait = (change) => document.body.toggleAttribute("data-busy", (pending += change) > 0);

/** The response of a request, once its head has come. Raises ApiError. */
export async function send(path, { method = "GET", body, signal } = {}) {
  const headers = { "x-penstock-console": "1" };
  if (key()) headers.authorization = `Bearer ${key()}`;
  if (method !== "GET") headers["content-type"] = "application/json";
  const data = body === undefined ? undefined : JSON.stringify(body);
  const cache = method === "GET" ? "no-store" : "default"; // a POST's would tell the gateway's own cache to step aside
  let response;
  wait(1);
  try {
    response = await fetch(BASE + path, { method, headers, body: data, signal, credentials: "omit", cache });
  } catch (failure) {
    if (failure.name === "AbortError") throw failure;
    throw new ApiError("The gateway does not answer. Is it up?", 0, "unreachable");
  } finally {
    wait(-1);
  }
  if (response.ok && response.headers.get("content-type")?.startsWith("text/html"))
    throw new ApiError("Something else than the gateway has answered with a page: does a proxy ask you to sign in?", response.status, "no_gateway");
  if (response.ok) return response;
  const text = await response.text();
  let found = {};
  try {
    found = JSON.parse(text);
  } catch {
    // Something between the page and the gateway has answered.
  }
  const message = found?.error?.message ?? `The gateway answered ${response.status}.`;
  const failure = new ApiError(message, response.status, found?.error?.code, response.headers);
  if (failure.status === 401 || failure.code === "administration_forbidden") dispatchEvent(new CustomEvent("refused", { detail: failure }));
  throw failure;
}

export const get = async (path, signal) => (await send(path, { signal })).json();
export const post = async (path, body = {}, signal) => (await send(path, { method: "POST", body, signal })).json();

/** Call `onData` with the text of each event's data, until the stream ends. */
export async function readEvents(response, onData) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      rest += value ?? "";
      const events = rest.split(/\r?\n\r?\n/);
      rest = done ? "" : events.pop();
      for (const event of events) {
        const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (lines.length) onData(lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n"));
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {}); // where `onData` has thrown, the gateway need not go on
  }
}

/** Server-sent events as JSON until `signal` aborts; connects again, more slowly each time. */
export async function events(path, onEvent, signal, onError = () => {}) {
  for (let waitMs = 1000; !signal.aborted; waitMs = Math.min(2 * waitMs, 15000)) {
    try {
      await readEvents(await send(path, { signal }), (data) => {
        waitMs = 1000;
        onEvent(JSON.parse(data));
      });
    } catch (failure) {
      if (signal.aborted) return;
      onError(failure);
      if (failure.status >= 400 && failure.status < 500) return;
    }
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, waitMs);
      signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
    });
  }
}
