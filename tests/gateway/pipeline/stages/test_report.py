"""A receipt tells what a request came to, however it ended, and nothing of its text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from gateway.accounting.receipt import Receipt
from gateway.answer import Delta, Generated, close_answer
from gateway.auth import KeyRing
from gateway.errors import to_api_error
from gateway.exchange.model_table import ModelTable, ServedModel
from gateway.pipeline.pipeline import Pipeline, PipelineParts
from gateway.providers.fake import FakeProvider, TextCall
from gateway.web.deadlines import TimeLimits
from policies.document import Policies, Price
from policies.tenants import Limits, Tenant
from tests.gateway.pipeline.exchanges import exchange_with, response_cache

CANARY = "canary-4711"
BODY = {
    "model": "auto",
    "messages": [{"role": "user", "content": CANARY}],
    "user": "jo@example.com",
    "max_tokens": 5,
}


async def _answers(call: TextCall) -> AsyncIterator[Delta]:
    yield Delta(0, text="hello", finish_reason="stop")


async def _fails(call: TextCall) -> AsyncIterator[Delta]:
    raise RuntimeError(CANARY)
    yield Delta(0)


async def _receipt(
    provider: FakeProvider, policies: Policies | None = None, keys: Sequence[str] = ()
) -> list[Receipt]:
    price = Price(input_usd_per_million_tokens=1e6, output_usd_per_million_tokens=1e6)
    model = ServedModel("m", "engine", provider, TimeLimits(None, None, 60), price=price)
    found: list[Receipt] = []
    table = ModelTable([model], {"auto": "m"})
    parts = PipelineParts(receivers=(found.append,))
    pipeline = Pipeline(KeyRing(keys), table, response_cache(), policies or Policies(), parts)
    exchange = exchange_with(BODY)
    try:
        await pipeline.run(exchange)
        assert isinstance(exchange.answer, Generated)
        async for _ in exchange.answer.deltas:
            pass
    except Exception as error:  # noqa: BLE001 - as the endpoint does
        exchange.error = to_api_error(error)
    finally:
        await close_answer(exchange.answer)
        pipeline.settle(exchange)
    return found


async def test_answer() -> None:
    [receipt] = await _receipt(FakeProvider(_answers))
    assert (receipt.tenant, receipt.model, receipt.status, receipt.error_type) == ("default", "m", 200, "")
    assert (receipt.endpoint, receipt.request_id, receipt.num_attempts) == ("chat", "id", 1)
    assert receipt.cost_usd == receipt.input_tokens + receipt.output_tokens > 0
    assert receipt.duration_s > 0
    assert receipt.user
    written = msgspec.json.encode(receipt)
    assert CANARY.encode() not in written
    assert b"jo@example.com" not in written


async def test_failure() -> None:
    [receipt] = await _receipt(FakeProvider(_fails))
    assert (receipt.status, receipt.model) == (500, "m")
    assert receipt.error_type == "ServerError"
    assert CANARY.encode() not in msgspec.json.encode(receipt)


async def test_refused_by_a_limit() -> None:
    """The refusal has a receipt, with the tenant and without a cost."""
    limits = Limits(tokens_per_minute=1)
    policies = Policies(tenants={"default": Tenant(limits=limits)})
    [receipt] = await _receipt(FakeProvider(_answers), policies)
    assert (receipt.tenant, receipt.status, receipt.cost_usd) == ("default", 429, 0.0)
    assert receipt.error_type == "RateLimited"


async def test_unknown_caller() -> None:
    """Callers without a key have no tenant, so no receipt."""
    assert await _receipt(FakeProvider(_answers), keys=["sk-1"]) == []
