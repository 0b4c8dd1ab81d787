"""check_fields: what the chosen model does with fields that the API of a translated request does not have."""

from __future__ import annotations

from gateway.exchange.exchange import Exchange, Stage


class CheckFields(Stage):
    """The stage."""

    async def enter(self, exchange: Exchange) -> None:
        """Raise the InvalidRequest of the first, unless the model's policy ignores them."""
        engine = None if exchange.model is None else exchange.model.engine
        if exchange.unknown and (engine is None or engine.service.unknown_fields != "ignore"):
            raise exchange.unknown[0]
