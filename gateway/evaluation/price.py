"""Price per token."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """USD per token; decimal, so that sums of tiny amounts are exact."""

    prompt_usd: Decimal
    completion_usd: Decimal

    def of(self, prompt_tokens: int, completion_tokens: int) -> Decimal:
        """Cost in USD."""
        return prompt_tokens * self.prompt_usd + completion_tokens * self.completion_usd
