"""Drafts of policies, tried before they are applied: nothing that only a draft names is opened."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gateway.admin.policy_check import check_loaded
from gateway.admin.policy_files import PolicyFolder
from gateway.errors import InvalidRequest
from gateway.exchange.prompt_embedding import Embed
from policies.document import Policies
from policies.errors import Place, PolicyError, Problem
from policies.load import Loaded, load_folder
from router.log import Record
from router.replay import Replay, Share, replay

MAX_RECORDS = 5_000
MAX_LOG_BYTES = 8 * 1024 * 1024
MAX_MOVES = 100
EMBED_LIMIT_S = 5.0
"""For the vector of one text, which takes milliseconds."""
_UNCHECKED = (
    "The draft names files or packages that the files on disk do not name, or another encoder: they are "
    "opened, and probes run, when it is applied."
)


class Drafts:
    """Checks drafts of one folder. Its methods block: call them in a thread."""

    def __init__(
        self, folder: PolicyFolder, policies: Policies, tenants: Callable[[], frozenset[str]]
    ) -> None:
        """`policies`: those that are served; `tenants`: those that callers can be."""
        self._folder, self._policies, self._tenants = folder, policies, tenants
        self._known: tuple[dict[Path, bytes], frozenset[tuple[str, str]]] = {}, frozenset()

    def check(self, changed: Mapping[str, str], embed: Embed) -> dict[str, Any]:
        """What `penstock check` says of it, its probes included. Raises InvalidRequest."""
        try:
            loaded, is_trusted = self._load(changed)
            loaded = check_loaded(loaded, embed if loaded.policies.encoder else None, is_trusted=is_trusted)
        except PolicyError as error:
            return {"problems": self._shown(error.problems)}
        return {
            "problems": [],
            "warnings": self._shown(loaded.warnings),
            "version": loaded.policies.version,
            "probes": len(loaded.policies.probes) if is_trusted else 0,
            "unchecked": "" if is_trusted else _UNCHECKED,
        }

    def replay(self, changed: Mapping[str, str], log: Path) -> dict[str, Any]:
        """What it would have decided about the latest records. Raises InvalidRequest or OSError."""
        try:
            policies = self._load(changed)[0].policies
        except PolicyError as error:
            raise InvalidRequest(self._folder.hidden(str(error))[:4000], code="policies_invalid") from None
        return _compared(replay(latest_records(log), policies))

    def _load(self, changed: Mapping[str, str]) -> tuple[Loaded, bool]:
        """The draft, and whether it names only what the files name too, so that this may be opened."""
        loaded = load_folder(self._folder.path, self._tenants(), self._folder.draft(changed))
        encoder = loaded.policies.encoder
        return loaded, loaded.outside <= self._named() and encoder in (None, self._policies.encoder)

    def _named(self) -> frozenset[tuple[str, str]]:
        """The files and packages that the files on disk name; none where these are not valid."""
        now = self._folder.texts()
        if now != self._known[0]:
            try:
                self._known = now, load_folder(self._folder.path, (), now).outside
            except PolicyError:
                self._known = now, frozenset()
        return self._known[1]

    def _shown(self, problems: Iterable[Problem]) -> list[dict[str, str | int]]:
        folder = f"{self._folder.folder}/"
        return [
            {
                "file": self._folder.hidden(each.place.file.removeprefix(folder)),
                "line": each.place.line,
                "column": each.place.column,
                "message": self._folder.hidden(each.message.replace(folder, "")),
            }
            for each in problems
        ]


def embed_from(loop: asyncio.AbstractEventLoop, embed: Embed, limit_s: float = EMBED_LIMIT_S) -> Embed:
    """`embed`, which belongs to `loop`, for the loop of another thread.

    What it gives raises PolicyError after so much time.
    """

    async def ask(text: str) -> Any:  # noqa: ANN401 - a vector or None
        return await embed(text)

    async def within(text: str) -> Any:  # noqa: ANN401
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(ask(text), loop))
        except TimeoutError:
            message = f"the encoder that is served has not answered a probe within {limit_s:g} s"
            remedy = "check again once /health/ready says that it is ready"
            raise PolicyError([Problem(Place("encoder"), f"{message}; {remedy}")]) from None

    return within


def latest_records(log: Path) -> list[Record]:
    """The last lines of a decision log that are records. Raises OSError."""
    with log.open("rb") as file:
        start = max(0, file.seek(0, os.SEEK_END) - MAX_LOG_BYTES)
        file.seek(start)
        lines = file.read(MAX_LOG_BYTES).split(b"\n")[1 if start else 0 :]
    decode, found = msgspec.json.Decoder(Record).decode, []
    for line in lines[-MAX_RECORDS:]:
        try:
            found.append(decode(line))
        except ValueError:  # a label, or a line that is being written
            continue
    return found


def _compared(found: Replay) -> dict[str, Any]:
    moves = sorted(found.moves.items(), key=lambda move: -move[1])[:MAX_MOVES]
    both = found.before, found.after
    return {
        "requests": found.num_requests,
        "unknown": found.num_unknown,
        "models": [
            [model, *(_row(shares.get(model, Share())) for shares in both)]
            for model in sorted({**both[0], **both[1]})
        ],
        "moves": [[*move, count] for move, count in moves],
    }


def _row(share: Share) -> dict[str, float | None]:
    return {
        "requests": share.requests,
        "cost_usd": share.cost_usd,
        "seconds": share.duration_s / share.requests if share.requests else None,
        "quality": share.quality / share.num_predicted if share.num_predicted else None,
    }
