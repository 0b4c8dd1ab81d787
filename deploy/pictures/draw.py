"""Draws the pictures of the guides from the texts beside it: `python deploy/pictures/draw.py`.

Lines of a text: `title WORDS`, `size W H`, `text X Y WORDS`, `frame X Y W H WORDS`, `arrow FROM TO WORDS` and
`box NAME X Y W H TITLE | LINE | …`, in pixels. Arrows are straight, between boxes that face each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
NAMES = ("architecture", "request")
LINE_PX = 16
TITLE_PX, CHARACTER_PX = 8.0, 6.3
"""Widths of a character on average, of the widest of the usual fonts."""
STYLE = """\
svg { --bg: #fff; --fg: #1c2024; --muted: #59616a; --box: #eef4fb; --line: #7d8791; --accent: #0b5cad;
  font: 12px system-ui, "DejaVu Sans", Helvetica, Arial, sans-serif; }
@media (prefers-color-scheme: dark) {
  svg { --bg: #0d1117; --fg: #e6e9ec; --muted: #a3acb5; --box: #1b2530; --line: #6d7884; --accent: #7cb7f5; }
}
text { fill: var(--fg); } .muted { fill: var(--muted); } .title { font-weight: 600; font-size: 13px; }
rect { fill: var(--box); stroke: var(--line); } .sheet { fill: var(--bg); stroke: none; }
.frame { fill: none; stroke-dasharray: 5 4; }
line { stroke: var(--accent); stroke-width: 1.5; } path { fill: var(--accent); }"""


class Box(NamedTuple):
    """A rectangle, in pixels."""

    x: int
    y: int
    width: int
    height: int


def picture(source: str) -> str:
    """The SVG of a text. Raises ValueError for words that do not fit and arrows that are not straight."""
    boxes: dict[str, Box] = {}
    shapes: list[str] = []
    width, height, title = 0, 0, ""
    for line in filter(None, source.splitlines()):
        kind, _, rest = line.partition(" ")
        if kind == "title":
            title = rest
        elif kind == "size":
            width, height = map(int, rest.split())
        elif kind == "text":
            x, y, words = rest.split(maxsplit=2)
            shapes.append(_text(int(x), int(y), words, "muted"))
        elif kind == "frame":
            *place, words = f"{rest} ".split(" ", 4)
            box = Box(*map(int, place))
            shapes += [_rectangle(box, "frame"), _text(box.x + 10, box.y + 19, words.strip(), "muted")]
        elif kind == "box":
            name, *place, words = rest.split(maxsplit=5)
            boxes[name] = Box(*map(int, place))
            shapes += [_rectangle(boxes[name], "box"), *_lines(boxes[name], words.split(" | "))]
        elif kind == "arrow":
            start, end, *words = rest.split(maxsplit=2)
            shapes += _arrow(boxes[start], boxes[end], "".join(words))
        else:
            raise ValueError(f"unknown kind {kind!r}: expected title, size, text, frame, box or arrow")
    sheet = f'<rect class="sheet" width="{width}" height="{height}" rx="8"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
    return "\n".join(
        [head, f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>", sheet, *shapes, "</svg>\n"]
    )


def _rectangle(box: Box, kind: str) -> str:
    return f'<rect class="{kind}" x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="6"/>'


def _text(x: int, y: int, words: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'


def _lines(box: Box, lines: list[str]) -> Iterator[str]:
    top = box.y + (box.height - LINE_PX * len(lines)) // 2 + 12
    for number, words in enumerate(lines):
        if len(words) * (CHARACTER_PX if number else TITLE_PX) > box.width - 8:
            raise ValueError(f"{words!r} does not fit into {box.width} pixels")
        kind = "muted" if number else "title"
        yield _text(box.x + box.width // 2, top + LINE_PX * number, words, kind, "middle")


def _facing(start: int, length: int, other: int, other_length: int) -> int | None:
    """The middle of what two spans have in common."""
    first, last = max(start, other), min(start + length, other + other_length)
    return (first + last) // 2 if first < last else None


def _arrow(a: Box, b: Box, words: str) -> Iterator[str]:
    y = _facing(a.y, a.height, b.y, b.height)
    x = _facing(a.x, a.width, b.x, b.width)
    if y is not None:
        sign = 1 if b.x > a.x else -1
        start, end = (a.x + a.width, b.x) if sign > 0 else (a.x, b.x + b.width)
        yield f'<line x1="{start}" y1="{y}" x2="{end - 6 * sign}" y2="{y}"/>'
        yield f'<path d="M{end} {y} l{-8 * sign} -4 v8 z"/>'
        yield _text((start + end) // 2, y - 6, words, "muted", "middle") if words else ""
    elif x is not None:
        sign = 1 if b.y > a.y else -1
        start, end = (a.y + a.height, b.y) if sign > 0 else (a.y, b.y + b.height)
        yield f'<line x1="{x}" y1="{start}" x2="{x}" y2="{end - 6 * sign}"/>'
        yield f'<path d="M{x} {end} l-4 {-8 * sign} h8 z"/>'
        yield _text(x + 8, (start + end) // 2 + 4, words, "muted") if words else ""
    else:
        raise ValueError(f"no straight line from {a} to {b}")


if __name__ == "__main__":
    for each in NAMES:
        (FOLDER / f"{each}.svg").write_text(picture((FOLDER / f"{each}.txt").read_text("utf-8")), "utf-8")
