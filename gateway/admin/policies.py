"""The policies' versions for operators: what is served, reload, rollback."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Literal, Protocol

import msgspec

from gateway.admin.access import AdminAccess
from gateway.errors import InvalidRequest
from gateway.processes.messages import PolicyState
from gateway.web.http_call import HttpCall

Ask = Literal["reload", "rollback"]


class PolicyControl(Protocol):
    """The versions of the policies, as the supervisor has them."""

    state: PolicyState

    def ask(self, action: Ask) -> Awaitable[str]:
        """Have all workers change the version. Returns what has happened. Raises ApiError."""
        ...


class _FixedPolicies:
    """One version: without a supervisor it cannot be changed."""

    state = PolicyState()

    async def ask(self, action: Ask) -> str:
        raise InvalidRequest("The policies of this process cannot be changed: no supervisor has started it.")


FIXED_POLICIES: PolicyControl = _FixedPolicies()


class PoliciesEndpoint:
    """GET and POST /admin/policies, POST /admin/policies/rollback."""

    def __init__(self, access: AdminAccess, control: PolicyControl) -> None:
        self._access = access
        self._control = control

    async def show(self, call: HttpCall) -> None:
        """The current version, those before it, and why the latest attempt failed, if it did."""
        self._access.look(call)
        await call.respond(msgspec.json.encode(msgspec.structs.asdict(self._control.state)))

    async def reload(self, call: HttpCall) -> None:
        """Read the policies again. A folder that is not valid is a 400 with every problem."""
        await self._change(call, "reload")

    async def rollback(self, call: HttpCall) -> None:
        """Serve the version before the current one."""
        await self._change(call, "rollback")

    async def _change(self, call: HttpCall, action: Ask) -> None:
        self._access.change(call)
        message = await self._control.ask(action)
        await call.respond(msgspec.json.encode({"message": message}))
