"""Messages between the gateway and an encoder process; same frames as an engine's (framing.py)."""

from __future__ import annotations

import msgspec


class EncoderConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that one encoder process is told; crosses the process border as JSON."""

    model: str  # the name that clients ask for
    checkpoint: str  # folder in the format of sentence-transformers, or builtin:all-minilm-l6-v2
    num_threads: int | None = None  # None: one per core
    max_queued_tokens: int = 300_000  # beyond it new requests are turned away


class Embed(msgspec.Struct, tag="embed", frozen=True):
    """Gateway → encoder: one vector for each input, a text or its token ids."""

    number: int  # chosen by the client, unique on its connection
    inputs: list[str | list[int]]


class EmbedCancel(msgspec.Struct, tag="cancel", frozen=True):
    """Gateway → encoder: nobody waits for this any more. No answer follows."""

    number: int


class EncoderHello(msgspec.Struct, tag="hello", frozen=True):
    """Encoder → gateway, first frame on a connection: what this process serves."""

    model: str
    checkpoint: str
    max_tokens: int  # of one input, special tokens included
    dimensions: int


class Embedded(msgspec.Struct, tag="embedded", frozen=True):
    """Encoder → gateway: the answer to an Embed, in the order of its inputs."""

    number: int
    vectors: list[bytes]  # each `dimensions` little-endian float32, of length 1
    num_tokens: list[int]  # of each input, special tokens included


class EmbedRejected(msgspec.Struct, tag="rejected", frozen=True):
    """Encoder → gateway: this Embed gets no vectors."""

    number: int
    kind: str  # "queue_full" | "invalid"
    message: str
    retry_after_s: float = 0.0
    param: str | None = None


class EncoderStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A snapshot for metrics; counters only grow while the process lives."""

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
FromEncoder = EncoderHello | Embedded | EmbedRejected | EncoderHeartbeat
