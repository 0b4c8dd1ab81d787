"""`penstock top`: reads /admin/live and draws each snapshot, in as many columns and lines as there are."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from gateway.cli.connection import Connection, NoAnswer

TIMEOUT_S = 10.0
"""Longer than a snapshot takes: after it the gateway is asked again."""
RETRY_S = 1.0
ENTER, LEAVE, HOME = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l", "\x1b[H"
# The words of the console's Live: see `gateway/console/static/live.js`.
_ENGINES = (
    "Engine", "State", "Running", "Waiting", "Queue", "Pages", "Prefix hits", "Out", "In", "Tokens per step",
    "Drafts accepted",
)  # fmt: skip
_TARGETS = (
    "Model", "Target", "State", "Running", "Errors (10 s)", "To first content", "Asked again in",
)  # fmt: skip
_WORKERS = ("Worker", "Process", "In flight", "Up for", "Policies", "Cache entries")


def watch(open_: Callable[[], Connection], out: TextIO, *, is_once: bool, is_json: bool) -> int:
    """Draw until Ctrl-C. Raises SettingsError: refused, or no gateway at the start."""
    has_screen = not is_once and not is_json
    try:
        for number, (snapshot, why) in enumerate(_snapshots(open_)):
            if is_once and number == 0:
                continue  # speeds are known from the second one on
            if is_json:
                if snapshot is not None:
                    out.write(json.dumps(snapshot) + "\n")
            elif has_screen:
                size = shutil.get_terminal_size()
                lines = [why] if snapshot is None else render(snapshot, size.columns)
                shown = "".join(f"{line}\x1b[K\n" for line in _fitted(lines, size.columns)[: size.lines - 1])
                out.write(f"{'' if number else ENTER}{HOME}{shown}\x1b[J")
            elif snapshot is not None:
                out.write("".join(f"{line}\n" for line in render(snapshot, 10_000)))
            out.flush()
            if is_once:
                break
    except KeyboardInterrupt:
        pass
    finally:
        if has_screen:
            out.write(LEAVE)
            out.flush()
    return 0


def _snapshots(open_: Callable[[], Connection]) -> Iterator[tuple[dict[str, Any] | None, str]]:
    """Snapshots, or why there is none. Raises SettingsError."""
    has_answered = False
    while True:
        try:
            for snapshot in open_().events("/admin/live"):
                has_answered = True
                yield snapshot, ""
        except NoAnswer as error:
            if not has_answered:
                raise
            yield None, f"{error} Trying again."
        time.sleep(RETRY_S)


def render(snapshot: Mapping[str, Any], width: int) -> list[str]:
    """The lines of a snapshot."""
    when = time.strftime("%H:%M:%S", time.localtime(snapshot["at_s"]))
    lines = [
        f"penstock {snapshot['release']}  {when}  policies {snapshot['policy'][:12]}",
        "",
        *_table(_ENGINES, map(_engine, snapshot["engines"]), width),
    ]
    targets = [
        (
            each["model"],
            each["place"],
            each["state"],
            str(each["running"]),
            _share(each["error_share"]),
            _seconds(each["latency_s"]),
            _seconds(each["cooldown_s"] or None),
        )
        for each in snapshot["targets"]
    ]
    workers = [
        (
            *(str(each[name]) for name in ("number", "pid", "in_flight")),
            "ended" if each["uptime_s"] is None else _seconds(each["uptime_s"]),
            "does not answer" if each["policy"] is None else each["policy"][:12],
            "-" if each["cache_entries"] is None else str(each["cache_entries"]),
        )
        for each in snapshot["workers"]
    ]
    for names, rows in ((_TARGETS, targets), (_WORKERS, workers)):
        lines += ["", *_table(names, rows, width)] if rows else []
    return lines


def _engine(engine: Mapping[str, Any]) -> Sequence[str]:
    proposed, accepted = (sum(each[name] for each in engine["drafters"]) for name in ("proposed", "accepted"))
    return (
        f"{engine['name']} {engine['replica']}",
        engine["phase"],
        f"{engine['running']} of {engine['max_running']}",
        str(engine["waiting"]),
        _seconds(engine["queue_s"]),
        f"{engine['pages_used']} of {engine['pages_total']}",
        _share(engine["prefix_hit_share"]),
        _number(engine["output_tokens_per_s"], "/s"),
        _number(engine["input_tokens_per_s"], "/s"),
        _number(engine["tokens_per_step"]),
        _share(accepted / proposed if proposed else None),
    )


def _table(names: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> list[str]:
    """Aligned columns: those that a narrow terminal has no room for are left out, the last ones first."""
    cells = [names, *([_plain(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    while len(widths) > 2 and sum(widths) + 2 * len(widths) - 2 > width:
        widths.pop()
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=False)).rstrip() for row in cells]


def _fitted(lines: Iterable[str], width: int) -> list[str]:
    return [_plain(line)[: max(1, width - 1)] for line in lines]


def _plain(text: str) -> str:
    """Without what a terminal would obey: names are of others."""
    return "".join(each if each.isprintable() else "?" for each in text)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _number(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.1f}{unit}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 100:
        return f"{1000 * value:.0f}ms" if value < 1 else f"{value:.1f}s"
    return f"{value / 60:.0f}min" if value < 6000 else f"{value / 3600:.1f}h"
