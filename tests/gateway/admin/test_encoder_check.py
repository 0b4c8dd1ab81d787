"""Weights of another encoder than the policies' are refused, with file, line and remedy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from backend.encoder.checkpoint import BUILTIN, Reading, resolve
from backend.encoder.identity import identity_of
from cache.classifiers.linear import WEIGHTS as HEADS
from cache.verify.verifier import WEIGHTS as VERIFIER
from gateway.admin.encoder_check import encoder_problems, refuse_other_encoders
from gateway.admin.policy_check import load_checked
from guardrails.checks.classifier import WEIGHTS as CLASSIFIER
from policies.errors import PolicyError
from policies.load import load_folder
from router.estimate.estimate import WEIGHTS as ESTIMATES
from router.signals.domain import WEIGHTS as DOMAINS
from tests.backend.encoder.checkpoints import write_encoder

UPSTREAM = 'large: {upstream: {base_url: "http://127.0.0.1:1/v1"}}'
MODELS = """\
models:
  small: {upstream: {base_url: "http://127.0.0.1:1/v1"}}
  mine: {encoder: {checkpoint: mine, languages: [de, fr]}}
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root")
    write_encoder(root / "mine", "mpnet", prompts={"query": "query: "})
    return root


def problems(root: Path, text: str) -> list[tuple[int, str]]:
    path = root / "a.yaml"
    path.write_text(text)
    return [(problem.place.line, problem.message) for problem in encoder_problems(load_folder(path))]


def retrained(root: Path, shipped: Path, encoder: dict[str, object] | None, name: str) -> Path:
    """The shipped weights under another name, with this encoder on their card."""
    target = root / f"{name}.safetensors"
    shutil.copy(shipped, target)
    card = json.loads(shipped.with_suffix(".json").read_text())
    target.with_suffix(".json").write_text(json.dumps({**card, "encoder": encoder}))
    return target


@pytest.mark.parametrize(
    ("more", "line", "words"),
    [
        (
            "cache: {mode: semantic}\n",
            4,
            "cache.mode is 'semantic': the weights 'verifier.safetensors' were trained with the encoder "
            f"{BUILTIN} (",
        ),
        (
            "routes: {auto: {model: small, cache: {mode: semantic}}}\n",
            4,
            "routes.auto.cache.mode is 'semantic'",
        ),
        (
            "guardrails:\n  profiles:\n    strict:\n      injection: {}\n",
            7,
            "guardrails.profiles.strict.injection: the weights 'classifier.safetensors' were trained",
        ),
        ("guardrails: {profiles: {strict: {harm: {}}}}\n", 4, "guardrails.profiles.strict.harm: the weights"),
        (
            "routes:\n  auto:\n    rules:\n      - {when: \"signals.domain == 'law'\", model: small}\n"
            "    model: small\n",
            7,
            "routes.auto.rules.0.when reads signals.domain: the weights 'domains.safetensors'",
        ),
        (
            'signals: {estimate: "builtin:general"}\n'
            "routes: {auto: {rules: [{when: signals.gain > 0.1, model: small}], model: small}}\n",
            4,
            "routes.auto.rules.0.when reads signals.gain: the weights 'general.safetensors'",
        ),
        (
            "routes:\n  auto:\n    choose:\n      candidates: {small: {}}\n      estimate: builtin:general\n",
            8,
            "routes.auto.choose.estimate: the weights 'general.safetensors'",
        ),
    ],
)
def test_each_part_that_would_misread(root: Path, more: str, line: int, words: str) -> None:
    ((found, message),) = problems(root, MODELS + more)
    assert found == line and message.startswith(words), message
    own = identity_of(str(root / "mine"))
    assert f"but 'mine' is mine ({own.digest[:12]}…); train others (`" in message
    assert f"--encoder {root / 'mine'} --languages de,fr --out FILE`) and name them in `" in message
    assert message.endswith(f"or compare with {BUILTIN} (`cache.encoder`)")


@pytest.mark.parametrize(
    ("more", "line", "words", "key"),
    [
        (
            "routes:\n  auto:\n    choose:\n      candidates: {small: {}}\n      estimate: builtin:general\n",
            8,
            "routes.auto.choose.estimate: ",
            "routes.auto.choose.estimate",
        ),
        (
            "routes:\n  auto:\n    cascade: {models: [small, large], estimate: builtin:general}\n",
            6,
            "routes.auto.cascade.estimate: ",
            "routes.auto.cascade.estimate",
        ),
        (
            'signals: {estimate: "builtin:general"}\n'
            "routes: {auto: {rules: [{when: signals.gain > 0.1, model: small}], model: small}}\n",
            4,
            "routes.auto.rules.0.when reads signals.gain: ",
            "signals.estimate",
        ),
    ],
)
def test_an_estimate_that_reads_vectors_without_an_encoder(
    root: Path, more: str, line: int, words: str, key: str
) -> None:
    models = MODELS.replace("mine: {encoder: {checkpoint: mine, languages: [de, fr]}}", UPSTREAM)
    ((found, message),) = problems(root, models + more)
    assert found == line and message.startswith(words), message
    assert message.endswith(
        "the weights 'general.safetensors' read sentence vectors, which needs an encoder; add a model with a "
        f"section `encoder`, or name an estimate of words alone, such as builtin:pico, in `{key}`"
    )
    assert problems(root, models + more.replace("general", "pico")) == []
    assert problems(root, models + 'signals: {estimate: "builtin:general"}\n') == []  # nothing reads it


@pytest.mark.parametrize(
    "more",
    [
        "cache: {mode: exact}\n",
        "guardrails: {profiles: {s: {injection: {classifier: false}, topics: {t: {examples: [war]}}}}}\n",
        "routes: {auto: {rules: [{when: signals.freshness == 'slow', model: small}], model: small}}\n",
        "routes: {auto: {rules: [{when: signals.gain > 0.1, model: small}], model: small}}\n",
        "signals: {phrases: {t: [hello]}}\n"
        "routes: {auto: {rules: [{when: \"signals.similarity['t'] > 0.5\", model: small}], model: small}}\n",
    ],
)
def test_what_reads_no_vectors_or_only_compares_them_is_fine(root: Path, more: str) -> None:
    assert problems(root, MODELS + more) == []


def test_the_shipped_weights_are_of_the_shipped_encoder(root: Path, tmp_path: Path) -> None:
    """Also in a folder of its own; a prompt makes other vectors of it."""
    text = MODELS + "cache: {mode: semantic}\nguardrails: {profiles: {s: {harm: {}}}}\n"
    assert problems(root, text.replace("checkpoint: mine", f'checkpoint: "{BUILTIN}"')) == []
    copy = shutil.copytree(resolve(BUILTIN), tmp_path / "copy")
    assert problems(root, text.replace("checkpoint: mine", f"checkpoint: {copy}")) == []
    prompted = text.replace("checkpoint: mine", f'checkpoint: "{BUILTIN}", prompt: "ask: "')
    assert len(problems(root, prompted)) == 2


def test_weights_of_ones_own_encoder(root: Path) -> None:
    """Each key takes weights whose card names the encoder, and those only."""
    own = identity_of(str(root / "mine"), None, ("de", "fr")).card()
    shipped = {"verifier": VERIFIER, "heads": HEADS, "domains": DOMAINS, "classifier": CLASSIFIER}
    for name, path in shipped.items():
        retrained(root, path, own, name)
    retrained(root, ESTIMATES / "general.safetensors", own, "gain")
    text = (
        MODELS + "cache: {mode: semantic, verifier: verifier.safetensors, heads: heads.safetensors}\n"
        "signals: {domains: domains.safetensors, estimate: gain.safetensors}\n"
        "guardrails: {classifier: classifier.safetensors, profiles: {s: {harm: {}}}}\n"
        "routes:\n  auto:\n    rules:\n"
        "      - {when: \"signals.domain == 'law' || signals.gain > 1.0\", model: small}\n"
        "    model: small\n"
    )
    assert problems(root, text) == []
    other = problems(root, text.replace("[de, fr]", "[de, fr], prompt_name: query"))
    assert [line for line, _ in other] == [4, 4, 6, 5, 5]
    assert all("mine (" in message and "--prompt-name query" in message for _, message in other)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.with_suffix(".json").unlink(), "No such file"),
        (lambda path: path.with_suffix(".json").write_text("{}"), "sha256"),
        (lambda path: path.with_suffix(".json").write_text('{"sha256": "0"}'), "but its card says 0"),
        (lambda path: path.write_bytes(b""), "has SHA-256 e3b0c44298fc"),
        (lambda path: None, "were trained with the encoder builtin:"),
    ],
)
def test_broken_cards(root: Path, damage: object, words: str) -> None:
    path = retrained(root, VERIFIER, None, "broken")
    damage(path)  # type: ignore[operator]
    ((line, message),) = problems(root, MODELS + "cache: {mode: semantic, verifier: broken.safetensors}\n")
    assert line == 4 and words in message


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("cache: {verifier: domains.safetensors}\n", "cache.verifier"),
        ("cache: {heads: domains.safetensors}\n", "cache.heads"),
        ("guardrails: {classifier: domains.safetensors}\n", "guardrails.classifier"),
        ("signals: {domains: verifier.safetensors}\n", "signals.domains"),
    ],
)
def test_weights_of_another_kind(root: Path, text: str, what: str) -> None:
    for name, path in (("domains", DOMAINS), ("verifier", VERIFIER)):
        retrained(root, path, None, name)
    ((line, message),) = problems(root, MODELS + text)
    assert line == 4 and message.startswith(f"{what}: the file holds weights of another kind (KeyError: ")


def test_check_and_serve_refuse(root: Path) -> None:
    path = root / "a.yaml"
    path.write_text(MODELS + "cache: {mode: semantic}\n")
    for load in (load_checked, lambda path: refuse_other_encoders(load_folder(path))):
        with pytest.raises(PolicyError, match="a.yaml:4:.*cache.mode is 'semantic': the weights"):
            load(path)


def test_a_missing_encoder_is_reported_once(root: Path) -> None:
    assert (
        problems(root, MODELS.replace("checkpoint: mine", "checkpoint: gone") + "cache: {mode: semantic}\n")
        == []
    )


def test_the_digest_covers_the_prompt(root: Path) -> None:
    plain, asked = (identity_of(str(root / "mine"), each) for each in (None, Reading(prompt="query: ")))
    assert plain.digest != asked.digest
