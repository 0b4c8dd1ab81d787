// The frame of the console: tabs by the URL's fragment, and the API key.

import { get, key, setKey } from "./api.js";
import { error, field, fill, h } from "./dom.js";
import * as live from "./live.js";
import * as playground from "./playground.js";
import * as policies from "./policies.js";
import * as requests from "./requests.js";
import * as traffic from "./traffic.js";

const TABS = { playground, live, requests, traffic, policies };

const main = document.getElementById("main");
const tabs = document.getElementById("tabs");
let open = new AbortController();

function show() {
  const name = Object.hasOwn(TABS, location.hash.slice(1)) ? location.hash.slice(1) : Object.keys(TABS)[0];
  open.abort();
  open = new AbortController();
  fill(tabs, Object.entries(TABS).map(([each, tab]) =>
    h("a", { href: `#${each}`, "aria-current": each === name ? "page" : undefined }, tab.title)));
  document.title = `${TABS[name].title} · Penstock`;
  const root = h("section", { "aria-label": TABS[name].title });
  fill(main, root);
  TABS[name].mount(root, open.signal);
}

/** Ask for the key, try it, and go on. */
function signIn(message) {
  open.abort();
  const input = h("input", { type: "password", autocomplete: "off", value: key(), spellcheck: "false" });
  const state = h("div");
  const enter = async (event) => {
    event.preventDefault();
    setKey(input.value.trim());
    try {
      await get("/v1/models");
      show();
    } catch (failure) {
      fill(state, error(failure.message));
    }
  };
  fill(main, h("form", { class: "panel narrow", onsubmit: enter },
    h("h1", null, "API key"),
    h("p", { class: "muted" }, "Kept in this tab until it is closed. Pages other than the playground need a key of the policies' admin.principals."),
    field("Key", input), state, h("button", { class: "button" }, "Sign in")));
  if (message) fill(state, error(message));
  input.focus();
}

document.getElementById("key").addEventListener("click", () => signIn());
addEventListener("refused", ({ detail: { status, message } }) => {
  if (main.querySelector(".narrow, [aria-label=Playground] form")) return; // a key is asked for, or a tenant chats
  if (status === 401) return signIn(key() && message);
  open.abort();
  fill(main, h("div", { class: "panel narrow" }, error(message), h("p", null, "The playground works with this key."),
    h("button", { type: "button", onclick: () => signIn() }, "Use another key")));
});
addEventListener("hashchange", () => location.hash !== "#main" && show());
get("/v1/models").then(show, (failure) => failure.status === 401 || show());
