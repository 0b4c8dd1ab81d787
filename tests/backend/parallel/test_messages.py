from __future__ import annotations

import msgspec
import pytest

from backend.config import EngineConfig, ParallelConfig
from backend.parallel.messages import CountPages, Forward, Load, Message, Place, Stop

CONFIG = EngineConfig(model="m", checkpoint="/m", parallel=ParallelConfig(tensor=2))


@pytest.mark.parametrize(
    "message",
    [
        Load(CONFIG),
        CountPages(),
        Forward(1, b"1234", [2], [3], b"5678", None, {0: (0, 0, 1)}, b""),
        Place(None, "d", 4, {"q_proj": (4, b"1", b"2")}),
        Stop(),
    ],
)
def test_what_is_told_is_what_arrives(message: Message) -> None:
    data = msgspec.msgpack.encode(message)
    assert msgspec.msgpack.decode(data, type=Message) == message
