"""`python -m tests.backend.engine.pairs.table` writes the tables of the matrix into backend/FEATURES.md."""

from __future__ import annotations

from pathlib import Path

from tests.backend.engine.pairs.drafters import DRAFTERS, OTHERS
from tests.backend.engine.pairs.features import FEATURES

DOCUMENT = Path(__file__).parents[4] / "backend" / "FEATURES.md"
BEGIN, END = "<!-- pairs: begin -->\n", "<!-- pairs: end -->\n"


def table() -> str:
    """What the matrix holds, in Markdown."""
    rows = ["| Feature | Both sides | In the test | Seen at work when |", "|---|---|---|---|"]
    rows += [f"| {f.name} | {'yes' if f.is_asked_for else ''} | {f.test} | {f.proof} |" for f in FEATURES]
    names = [feature.name for feature in FEATURES]
    rows += ["", f"| | {' | '.join(names)} |", f"|---|{':-:|' * len(names)}"]
    for number, name in enumerate(names):
        cells = ["="] * (number + 1) + [""] * (len(names) - number - 1)
        rows.append(f"| {name} | {' | '.join(cells)} |")
    names = [feature.name for feature in OTHERS]
    rows += ["", f"| Drafter | Model | In the test | alone | {' | '.join(names)} |"]
    rows.append(f"|---|---|---|:-:|{':-:|' * len(names)}")
    all_equal = " | ".join(["="] * (1 + len(names)))
    rows += [f"| {drafter.name} | {drafter.model} | {drafter.test} | {all_equal} |" for drafter in DRAFTERS]
    return "\n".join(rows) + "\n"


def written(text: str) -> str:
    """The document with the table as it is now."""
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    assert found, f"{DOCUMENT.name} has no lines {BEGIN.strip()} and {END.strip()}"
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
