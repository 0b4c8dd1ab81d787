"""Errors and warnings about routes, each with file, line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.errors import PolicyError
from policies.load import load_folder

MODELS = """\
models:
  small: {engine: {checkpoint: builtin:pico-small, adapters: {german: {path: builtin:german}}}}
  large: {engine: {checkpoint: builtin:pico-large}}
  vectors: {encoder: {checkpoint: builtin:all-minilm-l6-v2}}
"""


def problems(folder: Path, text: str) -> list[str]:
    (folder / "models.yaml").write_text(MODELS)
    (folder / "routes.yaml").write_text(text)
    with pytest.raises(PolicyError) as caught:
        load_folder(folder)
    return [str(problem).removeprefix(f"{folder}/") for problem in caught.value.problems]


def warnings(folder: Path, text: str) -> list[str]:
    (folder / "models.yaml").write_text(MODELS)
    (folder / "routes.yaml").write_text(text)
    return [str(warning).removeprefix(f"{folder}/") for warning in load_folder(folder).warnings]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            "when: request.steam\n        model: large",
            "routes.yaml:4:15: unknown name 'request.steam'; did you mean 'request.stream'?",
        ),
        (
            'when: "request.steam"\n        model: large',
            "routes.yaml:4:16: unknown name 'request.steam'; did you mean 'request.stream'?",
        ),
        (
            "when: |\n          request.stream\n          && request.steam\n        model: large",
            "routes.yaml:6:14: unknown name 'request.steam'; did you mean 'request.stream'?",
        ),
        (
            "when: >\n          request.stream\n          && request.steam\n        model: large",
            "routes.yaml:4: unknown name 'request.steam'; did you mean 'request.stream'?",
        ),
        (
            "when: headers['x-region'] == 'eu'\n        model: large",
            "routes.yaml:4:9: headers['x-region'] is not one of routing.headers; add 'x-region' there",
        ),
        (
            "when: live.ready['smal']\n        model: large",
            "routes.yaml:4:9: live.ready['smal'] is no model; did you mean 'small'?",
        ),
        (
            "model: larg",
            "routes.yaml:4:9: route 'auto' leads to the unknown model 'larg'; did you mean 'large'?",
        ),
        ("model: vectors", "routes.yaml:4:9: route 'auto' leads to 'vectors', an encoder, which cannot chat"),
        (
            "split: {models: {small: 1, lage: 2}}",
            "routes.yaml:4:36: route 'auto' leads to the unknown model 'lage'; did you mean 'large'?",
        ),
        (
            "split: {models: {small: 0}}",
            "routes.yaml:4:33: routes.auto.rules.0.split.models.small must be a number "
            "> 0 and <= 1000000, not 0",
        ),
        (
            "model: small\n        fallback: {timeout: [lrge]}",
            "routes.yaml:5:30: route 'auto' leads to the unknown model 'lrge'; did you mean 'large'?",
        ),
        (
            "model: small\n        refuse: {message: 'no'}",
            "routes.yaml:4:9: routes.auto.rules.0 has both model and refuse; keep one",
        ),
        (
            "model: small\n        parameters: {clamp: {max_tokens: {min: 9, max: 3}}}",
            "routes.yaml:5:30: routes.auto.rules.0.parameters.clamp.max_tokens has min 9 over max 3; "
            "swap them",
        ),
        (
            "when: time.getHours('Europe/Berln') < 8\n        model: large",
            "routes.yaml:4:29: unknown time zone 'Europe/Berln'; did you mean 'Europe/Berlin'?",
        ),
        (
            "cascade: {models: [small]}",
            "routes.yaml:4:27: routes.auto.rules.0.cascade.models needs at least 2, not 1",
        ),
        (
            "choose: {candidates: {}}",
            "routes.yaml:4:30: routes.auto.rules.0.choose.candidates needs at least 1, not 0",
        ),
        (
            "choose: {candidates: {small: {}, large: {}}, budget_usd_per_day: 3}",
            "routes.yaml:4:54: routes.auto.rules.0.choose.budget_usd_per_day needs the "
            "`price` of a candidate; none has one",
        ),
        (
            "model: small\n        parameters: {set: {temperatur: 1}}",
            "routes.yaml:5:28: unknown key 'temperatur' in routes.auto.rules.0.parameters.set; "
            "did you mean 'temperature'?",
        ),
    ],
)
def test_errors(tmp_path: Path, rule: str, message: str) -> None:
    text = f"routes:\n  auto:\n    rules:\n      - {rule}\n    model: small\n"
    assert problems(tmp_path, text) == [message]


def test_a_route_needs_an_end(tmp_path: Path) -> None:
    text = "routes:\n  auto:\n    rules: [{when: request.stream, model: small}]\n"
    assert problems(tmp_path, text) == [
        "routes.yaml:2:3: route 'auto' does not say what to do when no rule matches; give it `model`"
    ]
    assert problems(tmp_path, "routes:\n  auto: {description: nothing}\n") == [
        "routes.yaml:2:3: route 'auto' does not say what to do when no rule matches; give it `model`"
    ]


def test_probes_send_only_headers_that_conditions_may_read(tmp_path: Path) -> None:
    probes = (
        "probes:\n  eu:\n    expect: {status: 200}\n    headers:\n      X-Region: eu\n      x-regoin: eu\n"
    )
    where = "routes.yaml:6:7: probe 'eu' has the header"
    assert problems(tmp_path, probes + "routing: {headers: [x-region]}\n") == [
        f"{where} 'x-regoin', not one of routing.headers; did you mean 'x-region'?"
    ]
    assert problems(tmp_path, probes.replace("      X-Region: eu\n", "      # none\n")) == [
        f"{where} 'x-regoin', not one of routing.headers; add it there"
    ]


@pytest.mark.parametrize("declared", ["", "signals.unavailable || ", "!signals.unavailable && "])
def test_a_refusal_by_the_encoder_says_what_it_does_without(tmp_path: Path, declared: str) -> None:
    rule = f"{{when: \"{declared}signals.domain == 'law'\", refuse: {{message: No.}}}}"
    found = warnings(tmp_path, f"routes:\n  auto:\n    rules:\n      - {rule}\n    model: small\n")
    if declared:
        assert not found
    else:
        (warning,) = found
        assert warning.startswith("routes.yaml:4:10: rule 1 may let requests pass while the encoder")
        assert "signals.domain is empty then; refuse them too with `signals.unavailable || …`" in warning


def test_headers_with_secrets_cannot_be_read(tmp_path: Path) -> None:
    assert problems(tmp_path, "routing:\n  headers: [authorization]\n") == [
        "routes.yaml:2:3: routing.headers has 'authorization', which carries secrets; remove it"
    ]


def test_unreachable_rules_are_warned_about(tmp_path: Path) -> None:
    text = """\
routes:
  auto:
    rules:
      - {when: "false", model: large}
      - {when: request.stream, model: large}
      - {when: request.stream, model: small}
      - {when: request.has_tools, system: Be brief.}
      - {when: request.has_tools, model: large}
      - {model: small}
      - {when: request.wants_json, model: large}
    model: large
"""
    assert warnings(tmp_path, text) == [
        "routes.yaml:4:9: rule 1 is never used: its condition is always false",
        "routes.yaml:6:9: rule 3 is never used: rule 2 has the same condition",
        "routes.yaml:10:9: rule 7 is never reached: rule 6 always matches",
        "routes.yaml:11:5: routes.auto.model is never used: rule 6 always matches",
    ]


def test_rules_before_routes_may_leave_nothing_to_them(tmp_path: Path) -> None:
    text = "routing: {rules: [{model: large}]}\nroutes: {auto: {model: small}}\n"
    assert warnings(tmp_path, text) == [
        "routes.yaml:2:10: route 'auto' is never used: rule 1 of routing.rules always matches"
    ]


def test_a_good_folder_has_no_warnings(tmp_path: Path) -> None:
    text = """\
routing: {headers: [x-region], expose: true}
tenants: {key-12345678: {tier: gold}}
routes:
  auto:
    rules:
      - {when: "headers['x-region'] == 'eu' && live.queue['small'] < 4", model: german}
      - {when: tenant.tier == 'gold', split: {models: {large: 9, small: 1}, sticky: conversation}}
    model: small:german
    fallback: {any: [large]}
"""
    assert warnings(tmp_path, text) == []


def test_signals_need_their_phrases_and_an_encoder(tmp_path: Path) -> None:
    text = """\
signals: {phrases: {refunds: [Give me my money back.]}}
routes:
  auto:
    rules: [{when: "signals.similarity['refund'] > 0.5", model: small}]
    model: small
"""
    message = (
        "routes.yaml:4:14: signals.similarity['refund'] is none of signals.phrases; did you mean 'refunds'?"
    )
    assert problems(tmp_path, text) == [message]
    (tmp_path / "models.yaml").write_text("models: {small: {engine: {checkpoint: builtin:pico-small}}}\n")
    (tmp_path / "routes.yaml").write_text(text.replace("['refund']", "['refunds']"))
    with pytest.raises(PolicyError, match="signals.similarity needs an encoder; add a model with a section"):
        load_folder(tmp_path)
