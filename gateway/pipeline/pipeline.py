"""The ordered list of stages, and what happens at the end whatever happened before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.auth import KeyRing
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.models import ModelTable
from gateway.pipeline.stages.account import account
from gateway.pipeline.stages.authorize import authorize
from gateway.pipeline.stages.call_model import call_model
from gateway.pipeline.stages.choose_model import choose_model
from gateway.pipeline.stages.read_request import read_request

Stage = Callable[[Exchange], Awaitable[None]]


class Pipeline:
    """Takes an exchange from the first byte to an answer. A stage refuses by raising an ApiError."""

    def __init__(self, keys: KeyRing, models: ModelTable, policy_version: str = "") -> None:
        self.stages: tuple[Stage, ...] = (
            authorize(keys, policy_version),
            read_request,
            choose_model(models),
            call_model,
        )

    async def ask(self, exchange: Exchange) -> None:
        """Run the stages in order; `exchange.answer` is there afterwards. Raises what a stage raises."""
        for stage in self.stages:
            await stage(exchange)

    def settle(self, exchange: Exchange) -> None:
        """The exchange is over, well or not: called exactly once for each."""
        account(exchange)
