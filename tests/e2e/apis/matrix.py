"""What is tested of each endpoint in front of each provider, and the table of it in the documentation."""

from __future__ import annotations

from pathlib import Path

DOCUMENT = Path(__file__).parents[3] / "gateway" / "FEATURES.md"
BEGIN, END = "<!-- matrix: begin -->\n", "<!-- matrix: end -->\n"

ENDPOINTS = {"chat": "`/v1/chat/completions`", "responses": "`/v1/responses`", "messages": "`/v1/messages`"}
PROVIDERS = ("engine", "openai", "anthropic", "gemini", "bedrock", "azure")
FEATURES = ("text", "stream", "tools", "structured", "reasoning", "image", "error", "cancel")
REFUSED = {("engine", "image")}
"""Pairs of provider and feature that are refused by name."""


def table() -> str:
    """The matrix in Markdown."""
    rows = [f"| Endpoint | Provider | {' | '.join(FEATURES)} |", f"|---|---|{':-:|' * len(FEATURES)}"]
    for path in ENDPOINTS.values():
        for provider in PROVIDERS:
            cells = ["refused" if (provider, feature) in REFUSED else "=" for feature in FEATURES]
            rows.append(f"| {path} | {provider} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def written(text: str) -> str:
    """The document with the table as it is now."""
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    assert found, f"{DOCUMENT.name} has no lines {BEGIN.strip()} and {END.strip()}"
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
