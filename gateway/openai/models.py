"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from gateway.auth import KeyRing
from gateway.errors import NotFound
from gateway.openai.shape import encode
from gateway.pipeline.models import ModelTable, ServedModel
from gateway.web.http_call import Call
from policies.document import Price


class ModelsEndpoint:
    """Lists models and routes: whatever `model` may say in a request."""

    def __init__(self, keys: KeyRing, models: ModelTable) -> None:
        self._keys = keys
        self._models = models

    async def list(self, call: Call) -> None:
        """All of them, without those whose adapter has been unloaded."""
        self._keys.identify(call.authorization)
        entries = [model_entry(model.name, model) for model in self._models.models.values()]
        routes = [(name, self._models.resolve(name)) for name in self._models.routes]
        entries += [
            model_entry(name, model)
            for name, model in routes
            if model.engine is None or model.engine.model.is_loaded
        ]
        entries += [model_entry(model.name, model) for model in self._models.adapted()]
        await call.respond(encode({"object": "list", "data": entries}))

    async def show(self, call: Call) -> None:
        """One of them; raises NotFound."""
        self._keys.identify(call.authorization)
        name: str = call.scope["path_params"]["id"]
        found = self._models.resolve(name)
        if found.engine is not None:
            found.engine.model.check_loaded()
        await call.respond(encode(model_entry(name, found)))


def model_entry(name: str, model: ServedModel) -> dict[str, Any]:
    """What /v1/models says of a model under one of its names."""
    entry = {"id": name, "object": "model", "created": model.created, "owned_by": model.owned_by}
    if model.engine is not None and model.engine.client.hello is not None:
        entry["max_model_len"] = model.engine.client.hello.max_model_tokens  # vLLM's name for it
    if model.parent:
        entry["parent"] = model.parent  # vLLM's name for an adapter's base
    elif model.name != name:
        entry["root"] = model.name  # vLLM's name for what answers: a route leads to it
    if model.price is not None:
        entry["pricing"] = _pricing(model.price)
    return entry


def _pricing(price: Price) -> dict[str, str]:
    """In OpenRouter's shape: USD per token, as text because a float would not be exact."""
    return {
        "prompt": _per_token(price.input_usd_per_million_tokens),
        "completion": _per_token(price.output_usd_per_million_tokens),
    }


def _per_token(usd_per_million: float) -> str:
    return f"{(Decimal(repr(usd_per_million)) / 1_000_000).normalize():f}"


def engine_of(models: ModelTable, name: str | None) -> ServedModel:
    """The engine's model that /tokenize and /detokenize speak of; without a name, the only one."""
    model = models.only_engine() if name is None else models.resolve(name)
    if model is None or model.engine is None:
        what = (
            "Name a 'model' of our own engine"
            if name is None
            else f"The model {name!r} has no tokenizer here"
        )
        raise NotFound(f"{what}; GET /v1/models lists those with a 'max_model_len'.", param="model")
    return model
