"""Engines that run elsewhere: where they are, and which greetings fit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backend.server.endpoints import RemoteEndpoint
from backend.server.engine_client import EngineClient
from backend.server.engine_messages import EngineStats, Heartbeat, Hello
from backend.server.quote import PageIndex
from gateway.providers.engine.remote import Door, Expected, listed_endpoints, refusal_beside
from gateway.providers.engine.replicas import Replicas
from gateway.settings import Settings, SettingsError
from policies.document import EngineModel
from policies.engine_addresses import EngineConnection
from policies.names import split_replica

ADDRESSES = ["tcp://127.0.0.1:7600", "tls://[::1]:7601"]
EXPECTED = Expected(vocab_size=50, revision="r" * 64, dtype="", kv_dtype="float32")
HELLO = Hello("m", "/c", "r" * 64, 512, 50, 64, "cpu", "float32", kv_dtype="float32", instance="one")


def changed(**changes: Any) -> Hello:  # noqa: ANN401
    return msgspec.structs.replace(HELLO, **changes)


def test_addresses() -> None:
    engine = EngineModel(checkpoint="c", addresses=ADDRESSES)
    found = listed_endpoints("m", engine, Settings(upstream_api_keys={"m": "the token", "other": "x"}))
    assert [split_replica(name) for name in found] == [("m", each) for each in ADDRESSES]
    plain, encrypted = found.values()
    assert plain == RemoteEndpoint(ADDRESSES[0], "127.0.0.1", 7600, token="the token")
    assert (encrypted.host, encrypted.port, str(encrypted)) == ("::1", 7601, ADDRESSES[1])
    assert plain.tls is None and encrypted.tls is not None


def test_files_that_cannot_be_used() -> None:
    engine = EngineModel(checkpoint="c", addresses=ADDRESSES, connection=EngineConnection(ca="/none"))
    with pytest.raises(SettingsError, match="models.m.engine.connection: the CAs in '/none'"):
        Door("m", engine, Settings())


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"protocol": 2}, "protocol", "its protocol is version 2, this gateway's 1"),
        ({"role": "prefill"}, "role", "the role 'prefill'"),
        ({"vocab_size": 51}, "vocabulary", "its vocabulary is 51, that of the policies 50"),
        ({"revision": "s" * 64}, "revision", f"its revision is {'s' * 12}, that of the policies {'r' * 12}"),
        ({"kv_dtype": "int8"}, "kv_dtype", "its kv_dtype is int8"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes: dict[str, Any], reason: str, words: str) -> None:
    assert EXPECTED.refusal(HELLO) is None
    refusal = EXPECTED.refusal(changed(**changes))
    assert refusal is not None and refusal.reason == reason and words in refusal.message


def test_what_the_policies_leave_open() -> None:
    engine = EngineModel(checkpoint="builtin:pico-small", addresses=ADDRESSES)
    expected = Expected.of(engine)
    assert len(expected.revision) == 64 and expected.dtype == expected.kv_dtype == ""
    fp8 = Expected.of(msgspec.structs.replace(engine, kv_dtype="fp8", dtype="bfloat16"))
    assert (fp8.dtype, fp8.kv_dtype) == ("bfloat16", "float8_e4m3fn")


def test_engines_that_answer_in_turn_must_be_alike() -> None:
    other = changed(instance="other")
    assert refusal_beside(HELLO, other, "p") is None
    same = refusal_beside(HELLO, HELLO, "p")
    assert same is not None and same.message == "it is the process at p"
    mixed = refusal_beside(changed(revision="s" * 64, instance="three"), other, "p")
    assert mixed is not None and "that of the engine at p rrr" in mixed.message


def connected(client: EngineClient, hello: Hello) -> None:
    client.deliver(hello)
    client.deliver(Heartbeat(1, EngineStats()))


def lost(client: EngineClient) -> None:
    client._disconnect()


def test_the_one_that_serves_decides_and_not_one_that_comes() -> None:
    index = PageIndex()
    clients = [
        EngineClient(RemoteEndpoint(f"tls://{name}:1", name, 1), index.add_replica()) for name in "abc"
    ]
    replicas = Replicas(clients, index, Expected(50, "", "", ""))
    a, b, c = clients
    old, new = changed(revision="old"), changed(revision="new")
    connected(b, msgspec.structs.replace(old, instance="b"))
    connected(a, msgspec.structs.replace(new, instance="a"))  # restarted with new weights
    assert [each.ready for each in clients] == [False, True, False]
    assert a.refusal is not None and a.refusal.reason == "revision" and a.is_away
    connected(c, msgspec.structs.replace(old, instance="c"))
    assert replicas.first is b and [each.ready for each in clients] == [False, True, True]
    lost(b)
    assert a.refusal is not None, "one with the old weights still serves"
    lost(c)
    assert replicas.first is a and a.ready
    connected(b, msgspec.structs.replace(new, instance="b2"))
    connected(c, msgspec.structs.replace(new, instance="a"))
    assert [each.ready for each in clients] == [True, True, False]
    assert c.refusal is not None and c.refusal.message == "it is the process at tls://a:1"
    connected(c, changed(vocab_size=7))
    assert c.refusal is not None and c.refusal.reason == "vocabulary"
