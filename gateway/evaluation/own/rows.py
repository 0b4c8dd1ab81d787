"""Files of own questions, JSON lines: every mistake with file and line, never with the text of a question."""

from __future__ import annotations

import gzip
import hashlib
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import UNSET, UnsetType

from gateway.evaluation.own.graders import (
    GRADERS,
    Exact,
    Grader,
    GraderName,
    Json,
    Numeric,
    Regex,
    Rubric,
)
from gateway.settings import SettingsError
from policies.names import nearest

MAX_SHOWN = 20
"""Mistakes that are listed."""
_OPTIONS: dict[str, tuple[GraderName, ...]] = {
    "ignore_case": ("exact", "regex"),
    "tolerance": ("numeric",),
    "relative_tolerance": ("numeric",),
    "subset": ("json",),
    "rubric": ("judge",),
}


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line."""

    prompt: str | UnsetType = UNSET
    messages: list[dict[str, Any]] | UnsetType = UNSET
    tools: list[dict[str, Any]] | UnsetType = UNSET
    expected: Any = UNSET
    grader: str | UnsetType = UNSET
    group: str = ""
    id: str | int | UnsetType = UNSET
    ignore_case: bool | UnsetType = UNSET
    tolerance: float | UnsetType = UNSET
    relative_tolerance: float | UnsetType = UNSET
    subset: bool | UnsetType = UNSET
    rubric: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class OwnQuestion:
    """A question with its grader: a Rubric is for the judge."""

    id: str
    family: str  # its group, else the grader's name
    grader_name: GraderName
    fields: dict[str, Any]  # of the request: `messages`, perhaps `tools`
    answer: Any  # what was expected
    grader: Grader | Rubric

    tier = 0

    @property
    def prompt(self) -> str:
        """The text of the last message, for the file of results."""
        content = self.fields["messages"][-1].get("content")
        return content if isinstance(content, str) else msgspec.json.encode(content).decode()


@dataclass(frozen=True, slots=True)
class OwnData:
    """The questions of all files, and what identifies them."""

    files: tuple[str, ...]
    sha256: str
    questions: tuple[OwnQuestion, ...]

    @property
    def needs_judge(self) -> bool:
        """Whether a question has the grader `judge`."""
        return any(isinstance(each.grader, Rubric) for each in self.questions)


def read_data(paths: Sequence[Path], default: GraderName, limit: int | None) -> OwnData:
    """Read and check the files; `limit`: most questions of a group. Raises SettingsError."""
    digest, faults = hashlib.sha256(), list[str]()
    found: dict[str, OwnQuestion] = {}
    counts: dict[str, int] = {}
    for path in paths:
        data = _bytes(path)
        digest.update(data)
        for place, line in _lines(path, data):
            try:
                question = _question(line, place, default)
                if question.id in found:
                    raise ValueError("the id is that of another line; leave `id` out, or make it unique")
            except ValueError as error:
                faults.append(f"{place}: {error}")
                continue
            counts[question.family] = counts.get(question.family, 0) + 1
            if limit is None or counts[question.family] <= limit:
                found[question.id] = question
    if faults:
        more = [f"and {len(faults) - MAX_SHOWN} more"] if len(faults) > MAX_SHOWN else []
        raise SettingsError("\n  ".join(["--data cannot be used:", *faults[:MAX_SHOWN], *more]))
    if not found:
        raise SettingsError('--data has no questions: each line is one, as {"prompt": …, "expected": …}')
    return OwnData(tuple(map(str, paths)), digest.hexdigest(), tuple(found.values()))


def _bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except OSError as error:
        raise SettingsError(f"--data {str(path)!r} cannot be read: {error.strerror or error}") from None
    except (EOFError, zlib.error):
        raise SettingsError(f"--data {str(path)!r} is broken gzip") from None


def _lines(path: Path, data: bytes) -> Iterator[tuple[str, bytes]]:
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if line.strip():
            yield f"{path}:{number}", line


def _question(line: bytes, place: str, default: GraderName) -> OwnQuestion:
    """Raises ValueError, which quotes no value."""
    try:
        row = msgspec.json.decode(line, type=Row)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(_explained(str(error))) from None
    name = default if row.grader is UNSET else row.grader
    grader_name = next((each for each in GRADERS if each == name), None)
    if grader_name is None:
        raise ValueError(f"`grader` is none of {', '.join(get_args(GraderName))}")
    for option, of in _OPTIONS.items():
        if getattr(row, option) is not UNSET and grader_name not in of:
            raise ValueError(
                f"`{option}` is for the grader {' or '.join(of)}, and this one's is {grader_name}"
            )
    fields = _fields(row)
    return OwnQuestion(
        id=place if row.id is UNSET else str(row.id),
        family=row.group or grader_name,
        grader_name=grader_name,
        fields=fields,
        answer=None if row.expected is UNSET else row.expected,
        grader=_grader(row, grader_name, fields),
    )


def _explained(error: str) -> str:
    """The decoder's words, with the nearest key for an unknown one."""
    if "unknown field" in error:
        key = error.partition("`")[2].partition("`")[0]
        return f"unknown key {key!r}{nearest(key, Row.__struct_fields__)}"
    return error


def _fields(row: Row) -> dict[str, Any]:
    if (row.prompt is UNSET) == (row.messages is UNSET):
        raise ValueError("give either `prompt`, a text, or `messages`, as in a chat request")
    if row.messages is not UNSET:
        if not row.messages or not all({"role"} <= each.keys() for each in row.messages):
            raise ValueError("`messages` must be objects with `role` and `content`, and at least one")
        messages = row.messages
    else:
        assert row.prompt is not UNSET
        if not row.prompt.strip():
            raise ValueError("`prompt` is empty")
        messages = [{"role": "user", "content": row.prompt}]
    return {"messages": messages} | ({} if row.tools is UNSET else {"tools": row.tools})


def _grader(row: Row, name: GraderName, fields: dict[str, Any]) -> Grader | Rubric:
    expected = row.expected
    if name == "judge":
        if expected is UNSET and not row.rubric:
            raise ValueError("the grader judge needs `expected`, a right answer, or `rubric`, what counts")
        reference = None if expected is UNSET else expected
        asked = fields["messages"] if row.prompt is UNSET else row.prompt
        return Rubric(asked, reference, row.rubric or "")
    if expected is UNSET:
        raise ValueError(f"`expected` is missing, with which the grader {name} compares")
    if name == "json":
        return Json(expected, subset=bool(row.subset))
    ignore_case = row.ignore_case is True
    if name == "numeric":
        return _numeric(row)
    if name == "regex":
        if not isinstance(expected, str):
            raise ValueError("`expected` must be an expression, in quotation marks, for the grader regex")
        return Regex(expected, ignore_case=ignore_case)
    texts = [expected] if isinstance(expected, str) else expected
    if not isinstance(texts, list) or not texts or not all(isinstance(each, str) for each in texts):
        raise ValueError(
            "`expected` must be a text, or a list of texts, for the grader exact; numbers have numeric"
        )
    return Exact(texts, ignore_case=ignore_case)


def _numeric(row: Row) -> Numeric:
    expected = row.expected
    if isinstance(expected, bool) or not isinstance(expected, int | float):
        raise ValueError("`expected` must be a number, without quotation marks, for the grader numeric")
    given = [0.0 if each is UNSET else each for each in (row.tolerance, row.relative_tolerance)]
    if not all(each >= 0 and math.isfinite(each) for each in given):
        raise ValueError("`tolerance` and `relative_tolerance` must be 0 or more")
    try:
        return Numeric(float(expected), *given)
    except OverflowError:
        raise ValueError("`expected` is too large a number") from None
