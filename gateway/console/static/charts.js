// Charts as SVG. Each has its numbers as a table behind it, and says what to do where there are none.

import { h, s, table } from "./dom.js";

const WIDTH = 420, HEIGHT = 190, LEFT = 66, BOTTOM = 22, TOP = 8;
const color = (n) => `var(--c${(n % 6) + 1})`;

/** A number in words: `unit` is "s", "usd", "%", "bytes" or a word that follows it. */
export function show(value, unit = "") {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (unit === "%") return `${(100 * value).toFixed(value && value < 0.1 ? 1 : 0)} %`;
  if (unit === "usd") return `$${value >= 1 ? value.toFixed(2) : Number(value.toPrecision(2))}`;
  if (unit === "s") {
    const [, name] = [[172800, "d"], [6000, "h"], [100, "min"], [1, "s"]].find(([least]) => value >= least) ?? [0, "ms"];
    return `${Number((value / ({ d: 86400, h: 3600, min: 60, s: 1, ms: 0.001 })[name]).toPrecision(3))} ${name}`;
  }
  const [by, sign] = [[1e9, "G"], [1e6, "M"], [1e4, "k"]].find(([least]) => Math.abs(value) >= least) ?? [1, ""];
  const number = Number((value / (sign === "k" ? 1e3 : by)).toPrecision(sign || value % 1 ? 3 : 15));
  return `${number}${sign || unit ? " " : ""}${sign}${unit === "bytes" ? "B" : unit}`.trimEnd();
}

/** Round numbers from 0 to `most` or just above it: steps of 1, 2 or 5 times a power of ten. */
export function ticks(most) {
  const raw = (most > 0 ? most : 1) / 4, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((each) => each * power >= raw * 0.999);
  return Array.from({ length: Math.ceil((most > 0 ? most : 1) / step - 1e-9) + 1 }, (_, n) => n * step);
}

/** The last values as a line without axes. */
export function sparkline(values, label) {
  const known = values.map((each) => each ?? 0), most = Math.max(...known, 1e-9), step = 120 / Math.max(1, known.length - 1);
  const points = known.map((each, n) => `${(n * step).toFixed(1)},${(27 - (24 * each) / most).toFixed(1)}`).join(" ");
  return s("svg", { viewBox: "0 0 120 30", width: 120, height: 30, role: "img", "aria-label": label },
    s("polyline", { points, fill: "none", stroke: "var(--accent)", "stroke-width": 1.5 }));
}

function figure(title, empty, isEmpty, draw, legend, rows) {
  if (isEmpty) return h("figure", { class: "chart" }, h("figcaption", null, title), h("p", { class: "muted" }, empty));
  return h("figure", { class: "chart" }, h("figcaption", null, title),
    s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}; the table below has its numbers` }, draw),
    h("ul", { class: "legend" }, legend.map((name, n) => h("li", null,
      s("svg", { width: 10, height: 10, "aria-hidden": "true" }, s("rect", { width: 10, height: 10, fill: color(n) })), name))),
    h("details", null, h("summary", null, "As a table"), table(title, ...rows)));
}

function yAxis(marks, unit, y) {
  return marks.map((each) => [
    s("line", { x1: LEFT, x2: WIDTH, y1: y(each), y2: y(each), stroke: "var(--line)" }),
    s("text", { x: LEFT - 6, y: y(each) + 4, "text-anchor": "end" }, show(each, unit))]);
}

function xLabels(labels, x) {
  const every = Math.ceil(labels.length / 5);
  return labels.map((each, n) => n % every ? null
    : s("text", { x: x(n), y: HEIGHT - 5, "text-anchor": n ? "middle" : "start" }, each));
}

const rowsOf = (labels, series, unit) => [["Time", ...series.map((each) => each.name)],
  labels.map((label, n) => [label, ...series.map((each) => show(each.values[n] ?? null, unit))])];

/** Lines over time. `series`: [{ name, values }], null where there is no value. */
export function lines({ title, unit, labels, series, empty }) {
  const marks = ticks(Math.max(0, ...series.flatMap((each) => each.values.filter((value) => value !== null))));
  const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - TOP) * value) / marks.at(-1);
  const x = (n) => LEFT + ((WIDTH - LEFT - 10) * n) / Math.max(1, labels.length - 1);
  const draw = series.map(({ name, values }, at) => [
    s("path", { d: values.map((value, n) => value === null ? ""
      : `${n && values[n - 1] !== null ? "L" : "M"}${x(n).toFixed(1)} ${y(value).toFixed(1)}`).join(""),
    fill: "none", stroke: color(at), "stroke-width": 2 }),
    values.map((value, n) => value === null ? null : s("circle", { cx: x(n), cy: y(value), r: 2.5, fill: color(at) },
      s("title", null, `${name}, ${labels[n]}: ${show(value, unit)}`)))]);
  const isEmpty = !series.some((each) => each.values.some((value) => value !== null));
  return figure(title, empty, isEmpty, [yAxis(marks, unit, y), xLabels(labels, x), draw],
    series.map((each) => each.name), rowsOf(labels, series, unit));
}

/** Bars over time, those of one time on top of each other. `series` as for `lines`. */
export function bars({ title, unit, labels, series, empty }) {
  const sums = labels.map((_, n) => series.reduce((sum, each) => sum + (each.values[n] ?? 0), 0));
  const marks = ticks(Math.max(0, ...sums)), wide = (WIDTH - LEFT) / Math.max(1, labels.length);
  const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - TOP) * value) / marks.at(-1);
  const x = (n) => LEFT + wide * (n + 0.5);
  const draw = labels.map((label, n) => {
    let below = 0;
    return series.map(({ name, values }, at) => {
      const value = values[n] ?? 0, top = y(below + value), high = y(below) - top;
      below += value;
      return value ? s("rect", { x: x(n) - Math.min(wide * 0.8, 60) / 2, y: top, height: high, width: Math.min(wide * 0.8, 60), fill: color(at) },
        s("title", null, `${name}, ${label}: ${show(value, unit)}`)) : null;
    });
  });
  return figure(title, empty, !sums.some(Boolean), [yAxis(marks, unit, y), xLabels(labels, x), draw],
    series.map((each) => each.name), rowsOf(labels, series, unit));
}

/** Points with names. `x` and `y`: { label, unit }; `points`: [{ name, x, y }]. */
export function scatter({ title, x, y, points, empty }) {
  const [across, up] = ["x", "y"].map((axis) => ticks(Math.max(0, ...points.map((each) => each[axis]))));
  const atX = (value) => LEFT + ((WIDTH - LEFT - 40) * value) / across.at(-1);
  const atY = (value) => HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - TOP) * value) / up.at(-1);
  const draw = points.map((each, n) => s("circle", { cx: atX(each.x), cy: atY(each.y), r: 6, fill: color(n) },
    s("title", null, `${each.name}: ${show(each.x, x.unit)}, ${show(each.y, y.unit)}`)));
  const below = across.map((each) => s("text", { x: atX(each), y: HEIGHT - 5, "text-anchor": "middle" }, show(each, x.unit)));
  return figure(`${title}: ${y.label} by ${x.label}`, empty, !points.length, [yAxis(up, y.unit, atY), below, draw],
    points.map((each) => each.name),
    [["Name", x.label, y.label], points.map((each) => [each.name, show(each.x, x.unit), show(each.y, y.unit)])]);
}
