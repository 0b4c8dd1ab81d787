"""Choices that are none, and fallbacks to the model that has just failed, are warned of."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.load import load_folder

MODELS = """\
models:
  a: {upstream: {base_url: 'http://h/v1'}}
  b: {upstream: {base_url: 'http://h/v1'}}
  dear:
    upstream: {base_url: 'http://h/v1'}
    price: {input_usd_per_million_tokens: 1, output_usd_per_million_tokens: 1}
routes:
  auto:
    """


def warnings(folder: Path, route: str) -> list[str]:
    (folder / "p.yaml").write_text(MODELS + route)
    return [f"{each.place.line}: {each.message}" for each in load_folder(folder).warnings]


@pytest.mark.parametrize(
    ("route", "warning"),
    [
        (
            "choose: {candidates: {a: {}}}",
            "9: routes.auto.choose has one model, so there is nothing to choose; write `model: a`",
        ),
        ("split: {models: {a: 1}}", "9: routes.auto.split has one model"),
        ("best_of: {models: {a: 1}}", "9: routes.auto.best_of makes one answer"),
        (
            "choose: {candidates: {a: {}, b: {}}}",
            "9: routes.auto.choose has nothing to weigh: all candidates have the same",
        ),
        (
            "choose: {candidates: {a: {quality: 0.9}, b: {}}, strategy: cheapest}",
            "9: routes.auto.choose has nothing to weigh",
        ),
        ("cascade: {models: [a, a]}", "9: routes.auto.cascade.models asks a model twice"),
        (
            "model: a\n    fallback: {any: [b, a]}",
            "10: routes.auto.fallback.any leads back to 'a', the model that has just",
        ),
        ("model: a\n    fallback: {timeout: [b, b]}", "10: routes.auto.fallback.timeout names a model twice"),
        ("model: a\n    shadow: {model: a}", "10: routes.auto.shadow.model is 'a', which answers already"),
    ],
)
def test_warnings(tmp_path: Path, route: str, warning: str) -> None:
    (found,) = warnings(tmp_path, route)
    assert found.startswith(warning)


@pytest.mark.parametrize(
    "route",
    [
        "choose: {candidates: {a: {}, dear: {}}}",
        "choose: {candidates: {a: {quality: 0.9}, b: {}}}",
        "choose: {candidates: {a: {}, b: {}}, strategy: fastest}",
        "choose: {candidates: {a: {}, b: {}}, estimate: 'builtin:pico'}",
        "choose: {candidates: {a: {cost: 1}, b: {cost: 2}}, strategy: cheapest}",
        "best_of: {models: {a: 3}}",
        "split: {models: {a: 1, b: 1}}\n    fallback: {any: [a]}",
        "fallback: {any: [b]}\n    model: a\n    rules: [{when: request.stream, model: b}]",
        "model: a\n    fallback: {any: [b], timeout: [dear, b]}",
    ],
)
def test_real_choices(tmp_path: Path, route: str) -> None:
    assert warnings(tmp_path, route) == []
