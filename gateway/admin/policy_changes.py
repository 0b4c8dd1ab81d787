"""GET /admin/policies/files, and POST /admin/policies/check, /replay and /apply, of the console."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gateway.admin.access import AdminAccess
from gateway.admin.policies import PolicyControl
from gateway.admin.policy_drafts import Drafts, embed_from
from gateway.admin.policy_files import PolicyFolder
from gateway.auth import Principal
from gateway.errors import ApiError, InvalidRequest, RateLimited
from gateway.exchange.prompt_embedding import Embed
from gateway.exchange.shape import encode
from gateway.processes.reload import in_thread
from gateway.requests.parse import decode_body, typed
from gateway.web.http_call import HttpCall
from policies.errors import PolicyError
from policies.time_limit import at_most

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 1024 * 1024
LIMIT_S = 10.0
APPLY_LIMIT_S = 120.0
"""The time in which a reload reads: what could be served can be applied."""
MAX_THREADS = 2
"""They share the interpreter's lock with the event loop."""

T = TypeVar("T")


class DraftThreads:
    """Runs one piece of work of each caller at a time, within a time; all versions share it."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._busy: set[Principal] = set()

    async def run(self, caller: Principal, work: Callable[[], T]) -> T:
        """The result of `work`, from a thread. Raises RateLimited, or InvalidRequest for a PolicyError."""
        if caller in self._busy or len(self._busy) >= MAX_THREADS:
            message = "A draft of policies is being checked: wait for the answer before you send another."
            raise RateLimited(message, code="policies_busy", headers={"retry-after": "1"})
        self._busy.add(caller)

        def freeing() -> T:
            try:
                return work()
            finally:  # not before, even where the caller has left
                self._busy.discard(caller)

        return await self.run_beside(freeing)

    async def run_beside(self, work: Callable[[], T], limit_s: float | None = None) -> T:
        """The same for what need not wait for its turn."""

        def limited() -> T:
            try:
                with at_most(limit_s or self._limit_s):
                    return work()
            except PolicyError as error:
                raise InvalidRequest(str(error)[:4000], code="policies_invalid") from None

        return await in_thread(limited)


class DraftRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Texts of files by name, and to apply them the digests of files as they were read."""

    files: dict[str, str]
    base: dict[str, str] = {}


class PolicyChanges:
    """Reads, checks and changes the files of the policies."""

    def __init__(
        self,
        access: AdminAccess,
        control: PolicyControl,
        folder: PolicyFolder,
        drafts: Drafts,
        threads: DraftThreads,
        *,
        embed: Embed,
        decision_log: str,
    ) -> None:
        """`embed`: of the encoder that is served; `decision_log`: its file, "" without one."""
        self._access, self._control, self._folder, self._drafts = access, control, folder, drafts
        self._threads, self._embed, self._decision_log = threads, embed, decision_log
        self._applying: set[asyncio.Task[str]] = set()

    async def show(self, call: HttpCall) -> None:
        """The files, and which version is served."""
        self._access.look(call)
        folder = self._folder
        found = await self._threads.run_beside(lambda: {"locked": folder.locked, "files": folder.files()})
        shown = {"has_records": bool(self._decision_log), **found}
        await call.respond(msgspec.json.encode(msgspec.structs.asdict(self._control.state) | shown))

    async def check(self, call: HttpCall) -> None:
        """What `penstock check` says about a draft."""
        caller, asked = await self._read(call)
        await call.respond(encode(await self._threads.run(caller, self._checking(asked))))

    async def replay(self, call: HttpCall) -> None:
        """What a draft would have decided about the latest recorded requests."""
        caller, asked = await self._read(call)
        if not self._decision_log:
            message = "Decisions are not recorded: start the gateway with PENSTOCK_DECISION_LOG=FILE."
            raise InvalidRequest(message, code="no_decision_log")
        try:
            work = partial(self._drafts.replay, asked.files, Path(self._decision_log))
            await call.respond(encode(await self._threads.run(caller, work)))
        except OSError as error:
            raise InvalidRequest(f"The decision log cannot be read: {error.strerror}.") from None

    async def apply(self, call: HttpCall) -> None:
        """Write a draft and serve it, or leave everything as it was."""
        caller, asked = await self._read(call)
        task = asyncio.create_task(self._apply(caller, asked))
        self._applying.add(task)
        task.add_done_callback(self._applying.discard)
        message = await asyncio.shield(task)  # it ends also where the caller leaves
        await call.respond(encode({"message": message}))

    async def _read(self, call: HttpCall) -> tuple[Principal, DraftRequest]:
        caller = self._access.change(call)
        return caller, typed(decode_body(await call.read_json_bytes(MAX_BODY_BYTES)), DraftRequest)

    def _checking(self, asked: DraftRequest) -> Callable[[], dict[str, Any]]:
        embed = embed_from(asyncio.get_running_loop(), self._embed)
        return partial(self._drafts.check, asked.files, embed)

    async def _apply(self, caller: Principal, asked: DraftRequest) -> str:
        with contextlib.ExitStack() as lock:
            await self._threads.run_beside(partial(lock.enter_context, self._folder.alone()))
            work = partial(self._folder.change, asked.files, asked.base)
            before, after = await self._threads.run_beside(work)
            if problems := (await self._threads.run_beside(self._checking(asked), APPLY_LIMIT_S))["problems"]:
                told = (f"{each['file']}:{each['line']}: {each['message']}" for each in problems[:10])
                raise InvalidRequest("\n".join(told), code="policies_invalid")
            old = self._control.state.version
            try:
                await in_thread(partial(self._folder.write, before, after))
                message = await self._control.ask("reload")
            except ApiError as error:
                left = await in_thread(partial(self._folder.put_back, before, after))
                outcome = "The files are as they were."
                if left:
                    outcome = (
                        f"Not put back, as others changed them or they cannot be written: {', '.join(left)}."
                    )
                error.message = f"{error.message.rstrip('.')}. {outcome}"
                raise
            await in_thread(self._folder.settle)
        names, new = ", ".join(sorted(asked.files)), self._control.state.version
        logger.info("audit: %s changed the policies %s, %s before, %s now", caller.tenant, names, old, new)
        return message
