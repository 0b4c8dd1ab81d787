// Elements from text: what comes from a server or a user is only ever a text node or an attribute.

const SVG = "http://www.w3.org/2000/svg";

function build(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  fill(element, ...children);
  return element;
}

/** An HTML element. Props: `class`, `on…` listeners, `dataset`, `value`; others are attributes. */
export const h = (tag, props, ...children) => build(document.createElement(tag), props, children);

/** An SVG element. */
export const s = (tag, props, ...children) => build(document.createElementNS(SVG, tag), props, children);

/** Replace a node's content. Lists are flattened; null and false are left out. */
export function fill(node, ...children) {
  const shown = children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false);
  node.replaceChildren(...shown.map((each) => (each instanceof Node ? each : String(each))));
}

let count = 0;

/** A label with its control. */
export function field(label, control, props = {}) {
  control.id ||= `field-${++count}`;
  return h("div", { class: "field", ...props }, h("label", { for: control.id }, label), control);
}

/** A table from names of columns and rows of cells; numbers are never broken. */
export function table(caption, columns, rows, props = {}) {
  const cell = (value) => h("td", { class: typeof value === "number" ? "num" : undefined }, value);
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h(
      "table",
      { class: "table", ...props },
      h("caption", null, caption),
      h("thead", null, h("tr", null, columns.map((each) => h("th", { scope: "col" }, each)))),
      h("tbody", null, rows.map((row) => (row instanceof Node ? row : h("tr", null, row.map(cell))))),
    ),
  );
}

/** What went wrong, said to screen readers at once. */
export const error = (message) => h("p", { class: "error", role: "alert" }, message);
