// A unified diff of two texts by their longest common subsequence of lines.

import { h } from "./dom.js";

const MAX_CELLS = 4_000_000;
const CONTEXT = 3;

/** Lines as [kind, text], where kind is " ", "-" or "+". Of long texts the middle is one change. */
export function lines(before, after) {
  const a = before.split("\n"), b = after.split("\n");
  let start = 0, end = 0;
  while (start < Math.min(a.length, b.length) && a[start] === b[start]) start++;
  while (end < Math.min(a.length, b.length) - start && a.at(-1 - end) === b.at(-1 - end)) end++;
  const x = a.slice(start, a.length - end), y = b.slice(start, b.length - end);
  return [...a.slice(0, start).map((text) => [" ", text]), ...middle(x, y), ...a.slice(a.length - end).map((text) => [" ", text])];
}

function middle(x, y) {
  const width = y.length + 1;
  if (x.length * y.length > MAX_CELLS) return [...x.map((text) => ["-", text]), ...y.map((text) => ["+", text])];
  const common = new Uint32Array((x.length + 1) * width); // of the rest of both, from each pair of lines on
  for (let i = x.length - 1; i >= 0; i--)
    for (let j = y.length - 1; j >= 0; j--)
      common[i * width + j] = x[i] === y[j]
        ? common[(i + 1) * width + j + 1] + 1
        : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
  const found = [];
  for (let i = 0, j = 0; i < x.length || j < y.length;) {
    if (i < x.length && j < y.length && x[i] === y[j]) found.push([" ", x[i++]]), j++;
    else if (j === y.length || (i < x.length && common[(i + 1) * width + j] >= common[i * width + j + 1])) found.push(["-", x[i++]]);
    else found.push(["+", y[j++]]);
  }
  return found;
}

/** The changed lines with those around them. */
export function diff(name, before, after) {
  const all = lines(before, after);
  const near = (index) => all.slice(Math.max(0, index - CONTEXT), index + CONTEXT + 1).some(([kind]) => kind !== " ");
  const shown = [];
  all.forEach(([kind, text], index) => {
    if (near(index)) shown.push(h("span", { class: { "-": "bad", "+": "good" }[kind] }, `${kind} ${text}\n`));
    else if (index && near(index - 1)) shown.push("⋯\n");
  });
  return h("pre", { class: "diff", tabindex: 0, role: "region", "aria-label": `Changes of ${name}` }, h("strong", null, `${name}\n`), shown);
}
