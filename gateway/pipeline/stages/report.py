"""report: one receipt for each request of a known caller, when all other stages have settled."""

from __future__ import annotations

import time
from collections.abc import Sequence

from gateway.accounting.receipt import Receipt, Receive
from gateway.exchange.exchange import Exchange, Stage
from gateway.exchange.user import user_hash


class Report(Stage):
    """The stage, with those who receive the receipts."""

    is_for_calls = True

    def __init__(self, receivers: Sequence[Receive], policy_version: str) -> None:
        self._receivers = receivers
        self._policy_version = policy_version

    def settle(self, exchange: Exchange) -> None:
        """Give the exchange's to all of them."""
        if not self._receivers:
            return
        asked, routed, error, charged = exchange.asked, exchange.routed, exchange.error, exchange.charged
        telemetry, usage = asked.telemetry, charged.usage
        receipt = Receipt(
            request_id=asked.request_id,
            trace_id=telemetry.traceparent[3:35],
            ended_s=time.time(),
            duration_s=telemetry.meter.elapsed_s,
            first_token_s=telemetry.time_to_first_chunk_s,
            tenant=exchange.principal.tenant,
            key_id=exchange.principal.key_id,
            user=user_hash(exchange),
            endpoint=asked.endpoint.name,
            model="" if exchange.model is None else exchange.model.name,
            route="" if routed is None else routed.choice.route,
            target=telemetry.target,
            status=200 if error is None else error.status,
            error_type="" if error is None else error.kind,
            cache="" if exchange.cache_use is None else exchange.cache_use.outcome,
            guardrails="" if exchange.screening is None else str(exchange.screening.verdicts),
            input_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            is_estimated=usage.is_estimated,
            machine_seconds=usage.machine_seconds,
            cost_usd=charged.usd,
            num_attempts=telemetry.num_attempts,
            failed_models=tuple(exchange.attempts.failed_models),
            policy_version=self._policy_version,
        )
        for receive in self._receivers:
            receive(receipt)
