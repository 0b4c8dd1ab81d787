"""Messages between the gateway and an engine process, in the frames of wire.py."""

from __future__ import annotations

import msgspec

from backend.lora.info import AdapterInfo
from backend.server.token_proof import Challenge, TurnedAway
from backend.server.wire import Rejected
from backend.types import Request, StepOutput


class Submit(msgspec.Struct, tag="submit", frozen=True):
    """Gateway → engine: generate these sequences: all are admitted or none (the n choices of one request)."""

    requests: list[Request]


class Cancel(msgspec.Struct, tag="cancel", frozen=True):
    """Gateway → engine: drop these requests; their pages are free before the next step.

    A last output of each follows, with its trace, unless it has ended before.
    """

    request_ids: list[str]


class LoadAdapter(msgspec.Struct, tag="load_adapter", frozen=True):
    """Gateway → engine: read the adapter in this folder and serve it under this name.

    The answer is AdapterDone or Rejected.
    """

    call_id: str
    name: str
    path: str  # absolute; the gateway has checked that it may be read; may be of another machine
    replaces: bool = True  # False: reject if an adapter has the name already
    force: bool = False  # True: even if it names another base model
    digest: str = ""  # of these weights and no others, wherever they are; "": of whatever is in the folder


class UnloadAdapter(msgspec.Struct, tag="unload_adapter", frozen=True):
    """Gateway → engine: accept no new requests for this adapter; those in progress finish. As LoadAdapter."""

    call_id: str
    name: str


class Drain(msgspec.Struct, tag="drain", frozen=True):
    """Gateway → engine: take nothing new, hand back after `handover_s` what still runs, and exit."""

    handover_s: float


class Draining(msgspec.Struct, tag="draining", frozen=True):
    """Engine → gateway: it takes nothing new and will exit."""


class Returned(msgspec.Struct, tag="returned", frozen=True):
    """Engine → gateway: these requests have not ended and go on elsewhere; here they are cancelled."""

    request_ids: list[str]


class AdapterDone(msgspec.Struct, tag="adapter_done", frozen=True):
    """Engine → gateway: a LoadAdapter or UnloadAdapter succeeded."""

    call_id: str
    info: AdapterInfo


class Adapters(msgspec.Struct, tag="adapters", frozen=True):
    """Engine → gateway: all adapters that requests can name; after Hello, and after every change."""

    adapters: list[AdapterInfo]
    lost: list[str] = []  # names whose files have gone or changed


PROTOCOL = 1
"""Version of these messages. Engines and gateways of different versions refuse each other."""
ROLES = ("all",)
"""Which part of a request an engine computes."""


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """Engine → gateway, first frame on a connection that is admitted: what this process serves."""

    model: str
    checkpoint: str
    revision: str  # content hash of the weights' headers and config
    max_model_tokens: int
    vocab_size: int
    num_pages: int
    device: str
    dtype: str
    max_queue: int = 512  # requests that may wait; a gateway must not send more at once
    kv_dtype: str = ""
    has_states: bool = False  # recurrent ones: a prefix hit ends only at some of the pages
    protocol: int = PROTOCOL
    instance: str = ""  # drawn at each start of a process
    role: str = "all"


class Outputs(msgspec.Struct, tag="outputs", frozen=True):
    """Engine → gateway: everything that one step produced for this connection."""

    outputs: list[StepOutput]


DIGEST_BYTES = 8
"""Length of a page's digest in CachedPages: two of a million pages are equal with a chance of 1 in 10^7."""

# Upper bounds of the histogram buckets in EngineStats, without +Inf.
STEP_TIME_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
STEP_TOKENS_BOUNDS = tuple(float(2**i) for i in range(14))
TTFT_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
INTER_TOKEN_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
COMPILE_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
MASK_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1)


class CachedPages(msgspec.Struct, tag="cached_pages", frozen=True):
    """Engine → gateway, before heartbeats: changes of the prefix cache; all of it after Hello.

    Each is a concatenation of digests of pages that a hit may end with, cut to DIGEST_BYTES.
    """

    published: bytes = b""
    evicted: bytes = b""


class EngineStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A snapshot for metrics; counters never decrease while the process lives."""

    num_waiting: int = 0
    num_running: int = 0
    max_running: int = 0  # the setting, or fewer where memory for recurrent states is short
    waiting_tokens: int = 0  # of prompts that are not computed
    admission_interval_s: float = 0.0  # measured time between two admissions from the queue
    prefill_s_per_token: float = 0.0  # measured; 0: not yet
    decode_step_s: float = 0.0  # measured, at the present batch size; 0: not yet
    free_pages: int = 0  # free or evictable
    total_pages: int = 0
    cached_pages: int = 0  # held by the prefix tree, evictable
    state_checkpoints: int = 0  # kept recurrent states
    steps_total: int = 0
    work_s_total: float = 0.0  # of all steps: of the thread on a CPU, so without waiting for the core
    machine_work_s_total: float = 0.0  # wall time shared among sequences
    machine_idle_s_total: float = 0.0  # the rest of it
    prompt_tokens_total: int = 0  # computed, without prefix hits
    prefix_hit_tokens_total: int = 0
    generated_tokens_total: int = 0
    preemptions_total: int = 0
    drafts_total: int = 0  # verified: one per sequence and step
    # By position in the draft, from 0; the last entry counts all positions from there on.
    drafted_tokens_total: list[int] = []
    accepted_tokens_total: list[int] = []
    drafter_tokens_total: dict[str, list[int]] = {}  # verified and accepted ones, by drafter
    requests_total: dict[str, int] = {}  # by finish reason
    adapters_on_device: int = 0
    adapter_loads_total: int = 0  # copies to the device
    adapter_requests_total: dict[str, int] = {}  # by the name asked for, of those loaded now
    forced_tokens_total: int = 0
    # Histograms as cumulative bucket counts.
    step_time_s: list[int] = []
    step_time_sum_s: float = 0.0
    step_tokens: list[int] = []
    step_tokens_sum: float = 0.0
    ttft_s: list[int] = []
    ttft_sum_s: float = 0.0
    inter_token_s: list[int] = []
    inter_token_sum_s: float = 0.0
    grammar_compile_s: list[int] = []
    grammar_compile_sum_s: float = 0.0
    grammar_mask_s: list[int] = []
    grammar_mask_sum_s: float = 0.0


class Heartbeat(msgspec.Struct, tag="heartbeat", frozen=True):
    """Engine → gateway: sent by the step loop itself (busy: at most every 0.5 s; idle: every 0.5 s)."""

    step: int
    stats: EngineStats


ToEngine = Submit | Cancel | LoadAdapter | UnloadAdapter | Drain
FromEngine = (
    Challenge
    | TurnedAway
    | Hello
    | Outputs
    | Rejected
    | Heartbeat
    | AdapterDone
    | Adapters
    | CachedPages
    | Draining
    | Returned
)
