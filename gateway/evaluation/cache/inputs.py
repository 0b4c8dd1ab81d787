"""The flags and files of `penstock eval cache`, validated."""

from __future__ import annotations

import argparse
import gzip
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from backend.encoder.chosen import chosen_encoder
from cache.verify.verifier import WEIGHTS
from gateway.evaluation.encoder_flags import OfflinePlan, add_encoder_flags, read_threads
from gateway.evaluation.outputs import add_output_flags, read_outputs
from gateway.settings import SettingsError

DESCRIPTION = """
Measures the verifier of the semantic cache with a sentence encoder; needs no server. --pairs
takes JSON lines with `a`, `b`, `same` (true: one answer serves both), `source` and perhaps `kind`; --stream
takes JSON lines with `query`, `answer_id` and `source`, replayed from top to bottom: identical questions
first, then guards and the verifier over the five nearest stored questions, beside a cache that serves by
cosine alone. A question too long for the encoder is a miss, as in the gateway. "tokens saved" is the share
of all `tokens` of the rows, or of the questions' words where a row has none. Files may be compressed with
gzip.
"""


class PairRow(msgspec.Struct, frozen=True):
    """Two questions and whether one answer serves both."""

    a: str
    b: str
    same: bool
    source: str = "unnamed"
    kind: str = ""  # what distinguishes the two; a table with --kinds


class StreamRow(msgspec.Struct, frozen=True):
    """A question and the name of its right answer."""

    query: str
    answer_id: str
    source: str = "unnamed"
    tokens: Annotated[int, Meta(ge=0)] = 0  # of question and answer; 0: the words of the question


Row = TypeVar("Row", PairRow, StreamRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan(OfflinePlan):
    """What to measure."""

    pairs: dict[str, list[PairRow]]  # by file
    streams: dict[str, list[StreamRow]]
    max_false_share: float
    shows_kinds: bool
    is_int8: bool
    fits_thresholds: bool
    weights: Path = WEIGHTS


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags and the description."""
    parser.description = DESCRIPTION
    add = parser.add_argument
    add("--pairs", type=Path, nargs="+", default=[], metavar="FILE", help="labelled pairs of questions")
    add("--stream", type=Path, nargs="+", default=[], metavar="FILE", help="a stream of questions")
    add(
        "--max-false-share",
        type=float,
        default=0.01,
        metavar="SHARE",
        help="false share of all hits at which verifier and cosine are compared, default 0.01",
    )
    add("--kinds", action="store_true", help="also what is served of each `kind` of the pairs")
    add("--dtype", choices=("float32", "int8"), default="float32", help="of the encoder, default float32")
    add(
        "--fit-thresholds",
        action="store_true",
        help="after training: find the threshold for each false share on the stream, and ship it",
    )
    add("--weights", type=Path, default=WEIGHTS, metavar="FILE", help="of the verifier, default the shipped")
    add_encoder_flags(parser)
    add_output_flags(parser, "all results there", "hits against false hits")


def read_plan(options: argparse.Namespace) -> CachePlan:
    """Validate the flags and read the files. Raises SettingsError."""
    if not options.pairs and not options.stream:
        raise SettingsError("give --pairs FILE or --stream FILE")
    if options.plot is not None and not options.stream:
        raise SettingsError("--plot draws a stream: give --stream FILE")
    if not 0 < options.max_false_share < 1:
        raise SettingsError(f"--max-false-share {options.max_false_share:g} must be between 0 and 1")
    if options.fit_thresholds and len(options.stream) != 1:
        raise SettingsError("--fit-thresholds needs exactly one --stream FILE")
    num_threads, outputs = read_threads(options), read_outputs(options)
    return CachePlan(
        pairs={str(path): _read("--pairs", path, PairRow) for path in options.pairs},
        streams={str(path): _read("--stream", path, StreamRow) for path in options.stream},
        max_false_share=options.max_false_share,
        shows_kinds=options.kinds,
        num_threads=num_threads,
        is_int8=options.dtype == "int8",
        outputs=outputs,
        fits_thresholds=options.fit_thresholds,
        weights=options.weights,
        encoder=chosen_encoder(options),
    )


def _read(flag: str, path: Path, kind: type[Row]) -> list[Row]:
    """The rows of a file of JSON lines; lines end at \\n only. Errors name the line, not its text."""
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, zlib.error) as error:
        raise SettingsError(f"{flag} {str(path)!r} cannot be read: {error}") from None
    decode: Callable[[bytes], Row] = msgspec.json.Decoder(kind).decode
    rows: list[Row] = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            try:
                rows.append(decode(line))
            except msgspec.MsgspecError as error:
                raise SettingsError(f"{flag} {str(path)!r}, line {number}: {error}") from None
    if not rows:
        raise SettingsError(f"{flag} {str(path)!r} has no rows")
    _check_texts(flag, path, rows)
    return rows


def _check_texts(flag: str, path: Path, rows: Sequence[PairRow | StreamRow]) -> None:
    for number, row in enumerate(rows, 1):
        texts = (row.a, row.b) if isinstance(row, PairRow) else (row.query,)
        if not all(text.strip() for text in texts):
            raise SettingsError(f"{flag} {str(path)!r}: row {number} has an empty question")
