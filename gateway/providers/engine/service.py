"""What all models of one engine share: its replicas, its tokenizer and the policy for it."""

from __future__ import annotations

from collections.abc import Collection

from backend.server.engine_client import EngineClient
from backend.tokenizer import Tokenizer
from gateway.providers.engine.prompts import PromptEncoder
from gateway.providers.engine.replicas import Replicas
from gateway.tool_calls.families import find_syntax
from policies.document import Reasoning, Speculative, ToolParser, UnknownFields

MAX_WAITING_REQUESTS = 1024
"""Requests that wait for a starting engine, over all of its models; more are refused at once."""


class EngineService:
    """One engine's processes, shared by its base model and all adapters on it."""

    def __init__(
        self,
        replicas: Replicas,
        tokenizer: Tokenizer,
        start_wait_s: float = 0.0,
        reasoning: Reasoning | None = None,
        tool_parser: ToolParser = "auto",
        speculative: Speculative | None = None,
        unknown_fields: UnknownFields | None = None,
        peers: Collection[EngineClient] = (),
    ) -> None:
        """`start_wait_s`: how long a request waits for an engine that is starting or restarting.

        `peers`: all engines, these replicas included; one of the same weights goes on with what a dead one
        has begun.
        """
        self.replicas = replicas
        self.peers = peers
        self.tokenizer = tokenizer
        self.reasoning = reasoning or Reasoning()
        self.speculative = speculative or Speculative()
        self.unknown_fields = unknown_fields
        self.call_syntax = find_syntax(tokenizer.tool_use, tool_parser)
        self.prompts = PromptEncoder(tokenizer, self.call_syntax)
        self._start_wait_s = start_wait_s
        self.num_waiting = 0  # requests in `wait_ready`

    @property
    def client(self) -> EngineClient:
        """A replica for what does not depend on which."""
        return self.replicas.first

    async def wait_ready(self) -> None:
        """Wait for an engine that is starting, within limits on time and number. Raises EngineUnavailable."""
        if self.client.ready or not self._start_wait_s or self.num_waiting >= MAX_WAITING_REQUESTS:
            return
        self.num_waiting += 1
        try:
            await self.replicas.wait_ready(self._start_wait_s)
        finally:
            self.num_waiting -= 1
