"""Messages between the gateway and an encoder process, in the frames of wire.py."""

from __future__ import annotations

from typing import Literal

import msgspec

from backend.server.wire import Rejected


class EncoderConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration of one encoder process, passed to it as JSON."""

    model: str  # the name in client requests
    checkpoint: str  # folder in the format of sentence-transformers, or builtin:all-minilm-l6-v2
    dtype: Literal["float32", "int8"] = "float32"  # of the matrix products
    prompt: str | None = None  # put before each text
    prompt_name: str | None = None  # of one of the checkpoint's prompts
    pooling: str | None = None  # of a folder without modules.json
    sha256: dict[str, str] = {}  # by path of a file
    num_threads: int | None = None  # None: one per core
    max_queued_tokens: int = 300_000  # above it new requests are rejected


class Embed(msgspec.Struct, tag="embed", frozen=True):
    """Gateway → encoder: one vector for each input, a text or its token ids. Answer: Embedded or Rejected."""

    request_id: str  # chosen by the client, unique on its connection
    inputs: list[str | list[int]]


class EmbedCancel(msgspec.Struct, tag="cancel", frozen=True):
    """Gateway → encoder: drop this Embed. No answer follows."""

    request_id: str


class EncoderHello(msgspec.Struct, tag="hello", frozen=True):
    """Encoder → gateway, first frame on a connection: what this process serves."""

    model: str
    checkpoint: str
    max_tokens: int  # of one input, special tokens included
    dimensions: int


class Embedded(msgspec.Struct, tag="embedded", frozen=True):
    """Encoder → gateway: the answer to an Embed, in the order of its inputs."""

    request_id: str
    vectors: list[bytes]  # each `dimensions` little-endian float32
    num_tokens: list[int]  # of each input, special tokens included


class EncoderStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A snapshot for metrics; counters never decrease while the process lives."""

    waiting_inputs: int = 0
    waiting_tokens: int = 0
    requests_total: int = 0
    inputs_total: int = 0
    tokens_total: int = 0  # without padding
    passes_total: int = 0
    busy_s: float = 0.0


class EncoderHeartbeat(msgspec.Struct, tag="heartbeat", frozen=True):
    """Encoder → gateway: sent by the loop that encodes, at most every 0.5 s."""

    stats: EncoderStats


ToEncoder = Embed | EmbedCancel
FromEncoder = EncoderHello | Embedded | Rejected | EncoderHeartbeat
