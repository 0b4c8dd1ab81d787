// The files of the policies: check while typing, compare, replay, apply, roll back.

import { get, post } from "./api.js";
import { show } from "./charts.js";
import { error, field, fill, h, table } from "./dom.js";
import { diff } from "./policy_diff.js";
import { Editor } from "./policy_editor.js";

export const title = "Policies";
const KEPT = "penstock-policies";
const PAUSE_MS = 300;
const BUSY_MS = 1000;

/** Drafts by file, each with the digest of what it was made from. They survive a reload of the page. */
const kept = { open: "", drafts: {} };
try {
  Object.assign(kept, JSON.parse(sessionStorage.getItem(KEPT)));
} catch {
  // What is no JSON is not ours.
}
const keep = () => sessionStorage.setItem(KEPT, JSON.stringify(kept));

const plain = (text) => text.replace(/\r\n?/g, "\n"); // as a textarea gives it back
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** What `ask` gives, asked again while another draft is being checked. */
async function patiently(ask, tries = 20) {
  try {
    return await ask();
  } catch (failure) {
    if (failure.code !== "policies_busy" || tries === 0) throw failure;
    await pause(BUSY_MS);
    return patiently(ask, tries - 1);
  }
}

const button = (label, onclick, props) => h("button", { type: "button", onclick, ...props }, label);

export function mount(root, signal) {
  let state = { files: [] }, timer, isChecking = false, isStale = false;
  const head = h("div", { class: "panel" }), list = h("div", { class: "row" }), said = h("div", { "aria-live": "polite" });
  const problems = h("div"), asked = h("div"), replayed = h("div");
  const editor = new Editor(onText);
  const fileOf = (name) => state.files.find((each) => each.name === name) ?? { name, text: "", digest: "" };
  const textOf = (name) => kept.drafts[name]?.text ?? plain(fileOf(name).text);

  /** The drafts as they are sent: with the line ends that their files have. */
  function body() {
    const sent = (name, { text }) => (fileOf(name).text.includes("\r\n") ? text.replaceAll("\n", "\r\n") : text);
    const files = Object.fromEntries(Object.entries(kept.drafts).map(([name, draft]) => [name, sent(name, draft)]));
    const base = Object.fromEntries(state.files.map((each) => [each.name, kept.drafts[each.name]?.base ?? each.digest]));
    return { files, base };
  }

  async function load() {
    try {
      state = await get("/admin/policies/files", signal);
    } catch (failure) {
      if (!signal.aborted) fill(head, error(failure.message));
      return;
    }
    const names = [...state.files.map((each) => each.name), ...Object.keys(kept.drafts)];
    if (!names.includes(kept.open)) kept.open = names[0] ?? "";
    open(kept.open);
  }

  function open(name) {
    kept.open = name;
    keep();
    editor.show(name, textOf(name), Boolean(state.locked || fileOf(name).locked));
    render();
    check();
  }

  function onText(text) {
    const name = kept.open, file = fileOf(name);
    if (text === plain(file.text) && file.digest) delete kept.drafts[name];
    else kept.drafts[name] = { text, base: kept.drafts[name]?.base ?? file.digest };
    keep();
    fill(asked);
    render();
    clearTimeout(timer);
    timer = setTimeout(check, PAUSE_MS);
  }

  /** Ask about the newest drafts; while an answer is awaited the next question waits for it. */
  async function check() {
    clearTimeout(timer);
    if (isChecking) return void (isStale = true);
    isChecking = true;
    isStale = false;
    let wait = 0;
    try {
      const verdict = await post("/admin/policies/check", { files: body().files }, signal);
      if (!isStale) showVerdict(verdict);
    } catch (failure) {
      if (failure.code === "policies_busy") (isStale = true), (wait = BUSY_MS);
      else if (!signal.aborted && !isStale) fill(problems, error(failure.message));
    }
    isChecking = false;
    if (isStale && !signal.aborted) timer = setTimeout(check, wait);
  }

  function showVerdict({ problems: found, warnings = [], version, probes, unchecked }) {
    editor.mark(found.filter((each) => each.file === kept.open).map((each) => each.line));
    const summary = found.length
      ? h("p", { class: "bad", role: "status" }, `${found.length} problem${found.length > 1 ? "s" : ""}`)
      : h("p", { class: "good", role: "status" }, `Valid: version ${version}${probes ? `, ${probes} probe${probes > 1 ? "s pass" : " passes"}` : ""}.`);
    fill(problems, summary, unchecked && h("p", { class: "muted" }, unchecked),
      h("ul", { class: "problems" }, found.map((each) => row(each, "bad")), warnings.map((each) => row(each, "warn"))));
  }

  function row({ file, line, column, message }, kind) {
    const better = /did you mean '([^']+)'/.exec(message)?.[1];
    const word = [...message.split("; did you mean")[0].matchAll(/'([^']+)'/g)].map((each) => each[1]).findLast((each) => editor.text.value.includes(each));
    const go = () => (file !== kept.open && open(file), editor.goTo(line, column));
    const where = line ? button(`${file}:${line}`, go, { class: "quiet" }) : file;
    return h("li", null, where, " ", h("span", { class: kind }, message), " ",
      better && word && file === kept.open && !editor.text.readOnly &&
        button(`Use ${better}`, () => editor.replace(line, column, word, better)));
  }

  /** Ask again before something is done; `about` says what it does. */
  function confirm(about, label, act) {
    const yes = button(label, async () => {
      yes.disabled = true;
      fill(said, h("p", { class: "muted" }, "Working: policies that start an engine or a classifier take as long as its start."));
      try {
        fill(said, h("p", { class: "good" }, (await act()).message));
      } catch (failure) {
        fill(said, error(failure.message));
      }
      fill(asked);
      await load();
    }, { class: "button" });
    fill(asked, h("div", { class: "panel", role: "group", "aria-label": label }, about, h("div", { class: "row" }, yes, button("Cancel", () => fill(asked)))));
    yes.focus();
  }

  function apply() {
    const names = Object.keys(kept.drafts);
    if (!names.length || state.locked) return;
    check();
    confirm(names.map((name) => diff(name, plain(fileOf(name).text), textOf(name))), "Apply now", async () => {
      const done = await post("/admin/policies/apply", body());
      kept.drafts = {};
      keep();
      return done;
    });
  }

  function rollback() {
    const target = state.previous.at(-1);
    confirm(h("p", null, `Serves version ${target} again at once, whatever the files say. The files stay as they are: the next reload, or a restart, serves them again.`),
      "Roll back now", () => post("/admin/policies/rollback"));
  }

  async function replay() {
    fill(replayed, h("p", { class: "muted" }, "Replaying…"));
    try {
      const found = await patiently(() => post("/admin/policies/replay", { files: body().files }, signal));
      const cells = (before, after, name, unit) => h("td", { class: "num" }, `${show(before[name], unit)} → ${show(after[name], unit)}`);
      const rows = found.models.map(([model, before, after]) => h("tr", null, h("th", { scope: "row" }, model),
        [["requests"], ["cost_usd", "usd"], ["seconds", "s"], ["quality", "%"]].map(([name, unit]) => cells(before, after, name, unit))));
      fill(replayed, h("div", { class: "panel" },
        table(`${found.requests} recorded requests, before → after`, ["Model", "Requests", "Cost", "Time of each", "Quality"], rows),
        found.moves.length ? table("Changed requests", ["From", "To", "Reason", "Requests"], found.moves) : h("p", null, "No request would go elsewhere.")));
    } catch (failure) {
      if (!signal.aborted) fill(replayed, error(failure.message));
    }
  }

  /** Drafts of files that have changed since, with the choice of either text. */
  function conflicts() {
    return Object.entries(kept.drafts).filter(([name, draft]) => draft.base !== fileOf(name).digest).map(([name]) =>
      h("p", { class: "warn", role: "alert" }, `${name} has changed on disk since you began to change it. `,
        button("Take the file", () => (delete kept.drafts[name], open(name))), " ",
        button("Keep mine", () => ((kept.drafts[name].base = fileOf(name).digest), open(name)))));
  }

  function create() {
    const input = h("input", { placeholder: "name.yaml", spellcheck: "false" });
    const add = (event) => {
      event.preventDefault();
      const name = input.value.trim();
      if (!name) return;
      kept.drafts[name] ??= { text: textOf(name), base: fileOf(name).digest };
      fill(asked);
      open(name);
    };
    fill(asked, h("form", { class: "panel row", onsubmit: add }, field("Name of the new file", input), h("button", null, "Add")));
    input.focus();
  }

  function render() {
    const file = fileOf(kept.open), names = [...new Set([...state.files.map((each) => each.name), ...Object.keys(kept.drafts)])];
    fill(head, h("h1", null, "Policies"),
      h("p", null, "Served: ", h("code", null, state.version || "–"), h("span", { class: "muted" }, ` · before: ${[...(state.previous ?? [])].reverse().join(", ") || "none"}`)),
      state.is_rolled_back && h("p", { class: "warn" }, "This version is served by a rollback, and is not what the files say: the next reload or restart serves the files. ",
        button("Serve the files", () => confirm(h("p", null, "Reads the files again and serves them."), "Reload now", () => post("/admin/policies")))),
      state.error && h("p", { class: "bad" }, `The last change failed: ${state.error}`),
      state.locked && h("p", { class: "warn" }, `Read-only: ${state.locked}`),
      h("div", { class: "row" }, button("Roll back…", rollback, { disabled: !state.previous?.length }), button("Read again", load)));
    fill(list, names.map((name) => button([name, kept.drafts[name] && " ", kept.drafts[name] && h("span", { class: "badge warn" }, "changed")], () => open(name), { "aria-pressed": String(name === kept.open) })),
      !state.locked && button("New file…", create));
    fill(notes, conflicts(), (file.locked || file.note) && h("p", { class: "warn" }, `${file.name}: ${file.locked || file.note}`));
    const isChanged = Object.keys(kept.drafts).length > 0;
    fill(actions, button("Apply…", apply, { class: "button", disabled: !isChanged || Boolean(state.locked) }),
      button("Discard this change", () => (delete kept.drafts[kept.open], open(kept.open)), { disabled: !kept.drafts[kept.open] }),
      button("Replay", replay, { disabled: !state.has_records }),
      !state.has_records && h("span", { class: "muted" }, "To replay, start the gateway with PENSTOCK_DECISION_LOG=FILE."));
  }

  const notes = h("div"), actions = h("div", { class: "row" });
  fill(root, head, said, list, notes, editor.node, actions, asked, problems, replayed);
  root.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "s") event.preventDefault(), apply();
  });
  addEventListener("focus", load, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  load();
}
