"""What calls of a model cost: its `price`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Usd = Annotated[float, Meta(ge=0.0)]


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """USD that calls of a model cost, for limits and budgets, /v1/models and `penstock eval`; 0 for free."""

    input_usd_per_million_tokens: Usd
    output_usd_per_million_tokens: Usd
    cached_input_usd_per_million_tokens: Annotated[
        Usd | None, Meta(description="Of input that the model's own cache had. Default: as input.")
    ] = None
    cache_write_usd_per_million_tokens: Annotated[
        Usd | None, Meta(description="Of input that the model's own cache has stored. Default: as input.")
    ] = None
    reasoning_usd_per_million_tokens: Annotated[
        Usd | None, Meta(description="Of output that is reasoning. Default: as output.")
    ] = None
    batch_factor: Annotated[
        Usd, Meta(description="Times this, tokens cost in a request of a batch; 0.5 for half of it.")
    ] = 1.0
    request_usd: Annotated[Usd, Meta(description="For each call of the model, beside all else.")] = 0.0
    machine_second_usd: Annotated[
        Usd,
        Meta(
            description="For each second that our engine has worked for the call: its share of the steps. "
            "Tokens cost as they do beside it; their prices may be 0."
        ),
    ] = 0.0
    image_usd: Annotated[
        Usd, Meta(description="For each image in a JSON answer that `passthrough` forwards.")
    ] = 0.0
    second_usd: Annotated[
        Usd, Meta(description="For each second of audio or video that such an answer tells.")
    ] = 0.0

    @property
    def input_and_output_usd(self) -> float:
        """The cost by which candidates are compared: of a million tokens each way."""
        return self.input_usd_per_million_tokens + self.output_usd_per_million_tokens

    @property
    def is_free(self) -> bool:
        """Whether no call costs anything."""
        return not any(getattr(self, name) for name in _COSTS)

    def tokens_usd(
        self, prompt: int, completion: int, *, cached: int = 0, written: int = 0, reasoning: int = 0
    ) -> float:
        """The cost of tokens; `cached`, `written` are parts of the prompt, `reasoning` of the completion."""
        prompt_usd, completion_usd = self.input_usd_per_million_tokens, self.output_usd_per_million_tokens
        usd = 0.0
        # A part without a price of its own stays in the whole: it costs what it always has, to the last bit.
        if (own := self.cached_input_usd_per_million_tokens) is not None:
            part = min(cached, prompt)
            prompt, usd = prompt - part, usd + part * own
        if (own := self.cache_write_usd_per_million_tokens) is not None:
            part = min(written, prompt)
            prompt, usd = prompt - part, usd + part * own
        if (own := self.reasoning_usd_per_million_tokens) is not None:
            part = min(reasoning, completion)
            completion, usd = completion - part, usd + part * own
        return (usd + prompt * prompt_usd + completion * completion_usd) / 1e6

    def highest_usd(self, prompt: int, completion: int) -> float:
        """The most that these tokens can cost, whatever a cache has and however much is reasoning."""
        written, thought = self.cache_write_usd_per_million_tokens, self.reasoning_usd_per_million_tokens
        reads = max(self.input_usd_per_million_tokens, written or 0.0)
        reads = max(reads, self.cached_input_usd_per_million_tokens or 0.0)
        return (prompt * reads + completion * max(self.output_usd_per_million_tokens, thought or 0.0)) / 1e6


_COSTS = tuple(name for name in Price.__struct_fields__ if name != "batch_factor")
