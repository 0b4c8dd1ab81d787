from __future__ import annotations

from pathlib import Path

import pytest

from policies.errors import PolicyError
from policies.load import load_folder, load_policies

GOOD = """\
models:
  m:
    engine: {checkpoint: builtin:pico-small}
    guardrails: strict
guardrails:
  default: strict
  profiles:
    strict:
      personal_data: {action: mask, kinds: [email, card]}
      injection: {action: block, classifier: false}
"""


def test_a_profile_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD)
    policies = load_policies(tmp_path)
    rules = policies.guardrails.profiles["strict"].personal_data
    assert (
        rules is not None and rules.kinds == ["email", "card"] and policies.models["m"].guardrails == "strict"
    )


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        (
            "guardrails: strict\n",
            "guardrails: strickt\n",
            4,
            "'strickt' is not a guardrail profile; did you mean",
        ),
        (
            "default: strict",
            "default: lax",
            6,
            "guardrails.default 'lax' is not a guardrail profile; known: strict",
        ),
        (
            "guardrails:\n",
            "routes:\n  r: {model: m, guardrails: lax}\nguardrails:\n",
            6,
            "routes.r.guardrails 'lax'",
        ),
        ("action: mask", "action: hide", 9, "action"),
        ("kinds: [email", "kinds: [mail", 9, "kinds"),
    ],
)
def test_problems(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    (tmp_path / "a.yaml").write_text(GOOD.replace(old, new, 1))
    with pytest.raises(PolicyError) as caught:
        load_policies(tmp_path)
    (problem,) = caught.value.problems
    assert problem.place.line == line and message in problem.message


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("injection: {}", "injection needs an encoder; add a model with a section `encoder`, or set `classi"),
        ("harm: {}", "harm needs an encoder"),
        ("topics: {a: {examples: [x]}}", "topics needs an encoder"),
        ("patterns: {a: {}}", "patterns.a needs either `words` or `regex`"),
        ("patterns: {a: {words: [x], regex: x}}", "needs either"),
        ("harm: {false_positive_rate: 0.5}", "false_positive_rate"),
        ("hooks: {a: {url: ftp://x}}", "url"),
        ("hooks: {a: {}}", "url"),
        ("hooks: {a: {url: 'http://x:99999/'}}", "hooks.a.url has a port that is not a number"),
        ("personal_data: {kinds: []}", "kinds"),
        ("patterns: {a: {words: [' ']}}", "words.0 must be"),
        ("patterns: {a: {words: []}}", "words needs at least 1, not 0"),
        (f"topics: {{a: {{examples: [{'x, ' * 201}]}}}}", "examples may have at most 200, not 201"),
        ("injection: {classifier: false, session_limit: 1}", "session_limit needs the classifier"),
        ("exempt_tenants: [reserch]", "has the unknown tenant 'reserch'; did you mean 'research'"),
    ],
)
def test_profiles_that_cannot_work_are_refused(tmp_path: Path, rules: str, message: str) -> None:
    model = "models: {m: {engine: {checkpoint: builtin:pico-small}}}\n"
    (tmp_path / "b.yaml").write_text("tenants: {research: {keys: [key-0a1b2c3d]}}")
    (tmp_path / "a.yaml").write_text(f"{model}guardrails:\n  profiles:\n    p:\n      {rules}\n")
    with pytest.raises(PolicyError) as caught:
        load_policies(tmp_path)
    assert any(message in each.message and each.place.line == 5 for each in caught.value.problems)


@pytest.mark.parametrize(
    ("route", "line"),
    [
        ("{model: a, fallback: {any: [b]}}", 6),
        ("{cascade: {models: [a, b]}}", 6),
        ("{model: b, rules: [{when: 'true', model: a}], fallback: {any: [b]}}", 6),
        ("{model: a, fallback: {any: [b]}, guardrails: strict}", None),
        ("{split: {models: {a: 1, b: 1}}}", None),
        ("{model: a, fallback: {any: [c]}}", None),
    ],
)
def test_models_that_may_follow_need_the_same_guardrails(
    tmp_path: Path, route: str, line: int | None
) -> None:
    (tmp_path / "a.yaml").write_text(
        "models:\n  a: {engine: {checkpoint: x}}\n"
        "  b: {engine: {checkpoint: x}, guardrails: strict}\n  c: {engine: {checkpoint: x}}\n"
        f"routes:\n  auto: {route}\n"
        "guardrails: {profiles: {strict: {personal_data: {}}}}\n"
    )
    if line is None:
        load_policies(tmp_path)
        return
    with pytest.raises(PolicyError) as caught:
        load_policies(tmp_path)
    (problem,) = caught.value.problems
    assert problem.place.line == line and "may follow 'a', which has None" in problem.message


def test_paths_that_are_passed_through_are_warned_about(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "models: {gpt: {upstream: {base_url: 'https://api.example/v1'}}}\n"
        "guardrails: {default: p, profiles: {p: {personal_data: {}}}}\n"
        "passthrough:\n  /v1/audio: {model: gpt}\n"
    )
    (warning,) = load_folder(tmp_path).warnings
    assert warning.place.line == 4 and "guardrails do not see" in warning.message
