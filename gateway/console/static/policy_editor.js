// A text with numbered lines, of which some are marked. Tab leaves it, as in every other field.

import { fill, h } from "./dom.js";

export class Editor {
  /** `onText` gets each new text. */
  constructor(onText) {
    this.text = h("textarea", {
      id: "policy-text", class: "code", wrap: "off", spellcheck: "false", autocapitalize: "off", autocomplete: "off",
      oninput: () => (this.number(), onText(this.text.value)),
      onscroll: () => (this.gutter.scrollTop = this.text.scrollTop),
    });
    this.gutter = h("div", { class: "gutter code", "aria-hidden": "true" });
    this.label = h("label", { for: "policy-text", class: "muted" }, "Text of the file");
    this.node = h("div", null, this.label, h("div", { class: "editor" }, this.gutter, this.text));
    this.marked = new Set();
  }

  show(name, text, isLocked) {
    fill(this.label, `Text of ${name}${isLocked ? ", read-only" : ""}`);
    if (this.text.value !== text) this.text.value = text; // else the cursor stays where it is
    this.text.readOnly = isLocked;
    this.mark([]);
  }

  mark(numbers) {
    this.marked = new Set(numbers);
    this.number();
  }

  /** Numbers and marks, unless they are there: laying out thousands of lines takes longer than a key may. */
  number() {
    const count = this.text.value.split("\n").length, wanted = [count, ...this.marked].join();
    if (wanted === this.numbered) return;
    this.numbered = wanted;
    const rows = [""]; // numbers without a mark share a text node
    for (let line = 1; line <= count; line++)
      if (this.marked.has(line)) rows.push(h("b", { class: "bad" }, `● ${line}\n`), "");
      else rows[rows.length - 1] += `${line}\n`;
    fill(this.gutter, rows);
    this.gutter.scrollTop = this.text.scrollTop;
  }

  /** Where a line begins and ends. */
  range(line) {
    const all = this.text.value.split("\n");
    const start = all.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
    return [start, start + (all[line - 1] ?? "").length];
  }

  goTo(line, column = 1) {
    const [start, end] = this.range(line);
    this.text.focus();
    this.text.setSelectionRange(Math.min(end, start + Math.max(0, column - 1)), end);
    this.text.scrollTop = Math.max(0, (line - 4) * parseFloat(getComputedStyle(this.text).lineHeight));
  }

  /** Replace a word of a line, at the column or else where it is first. */
  replace(line, column, word, other) {
    const [start, end] = this.range(line);
    const text = this.text.value.slice(start, end);
    const at = [text.indexOf(word, column - 1), text.indexOf(word)].find((each) => each >= 0);
    if (at === undefined) return this.goTo(line, column);
    this.text.setRangeText(other, start + at, start + at + word.length, "select");
    this.text.dispatchEvent(new Event("input"));
    this.text.focus();
  }
}
