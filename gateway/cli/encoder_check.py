"""What `penstock check` and `serve` say about weights of another encoder: file, line and remedy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from backend.errors import CheckpointError
from backend.heads.weights import WeightsError
from gateway.encoder_fit import EncoderFit
from policies.conditions import Condition
from policies.convert import KeyPath
from policies.document import Policies
from policies.errors import PolicyError, Problem
from policies.load import Loaded
from policies.routes import Rule
from router.estimate import load_estimate
from router.estimate.estimate import BUILTIN, WEIGHTS


@dataclass(frozen=True, slots=True)
class _Reader:
    """A part that reads sentence vectors."""

    place: KeyPath  # where it is asked for
    what: str
    weights: Path
    command: str  # that trains other weights
    key: KeyPath  # that names them


def refuse_other_encoders(loaded: Loaded) -> None:
    """Raise PolicyError where weights would read vectors of another encoder than their own."""
    problems = [*encoder_problems(loaded)]
    if problems:
        raise PolicyError(problems)


def encoder_problems(loaded: Loaded) -> Iterator[Problem]:
    """The same, one by one."""
    if loaded.policies.encoder is None:
        return
    fit = EncoderFit(loaded.policies)
    for reader in [
        *_cache(loaded.policies, fit),
        *_guardrails(loaded.policies, fit),
        *_rules(loaded.policies, fit),
    ]:
        try:
            fault = fit.misfit(reader.weights, reader.command, ".".join(reader.key))
        except WeightsError as error:
            fault = str(error)
        except CheckpointError:
            return  # reported where the encoder is
        if fault:
            place = reader.key if reader.key in loaded.places else reader.place
            while place not in loaded.places:  # an item of a list: the nearest key above it
                place = place[:-1]
            yield Problem(loaded.places[place], f"{reader.what}: {fault}")


def _cache(policies: Policies, fit: EncoderFit) -> Iterator[_Reader]:
    rules = [
        ((), policies.cache),
        *((("models", name), each.cache) for name, each in policies.models.items()),
    ]
    rules += [(tuple(path.split(".")), action.cache) for path, action in policies.actions()]
    semantic = [
        (*path, "cache", "mode") for path, each in rules if each is not None and each.mode == "semantic"
    ]
    for place in semantic[:1]:
        what, train = f"{'.'.join(place)} is 'semantic'", "python -m cache.{}.train"
        yield _Reader(place, what, fit.verifier, train.format("verify"), ("cache", "verifier"))
        if policies.cache.heads is not None:
            yield _Reader(place, what, fit.heads, train.format("heads"), ("cache", "heads"))


def _guardrails(policies: Policies, fit: EncoderFit) -> Iterator[_Reader]:
    for name, profile in policies.guardrails.profiles.items():
        uses = {"injection": profile.injection is not None and profile.injection.classifier}
        uses["harm"] = profile.harm is not None
        for check in (check for check, is_used in uses.items() if is_used):
            path = ("guardrails", "profiles", name, check)
            key = ("guardrails", "classifier")
            yield _Reader(path, ".".join(path), fit.classifier, "python -m guardrails.train", key)


def _rules(policies: Policies, fit: EncoderFit) -> Iterator[_Reader]:
    train = "penstock router train --form"
    for path, action in policies.actions():
        place = tuple(path.split("."))
        names = Condition(action.when).names if isinstance(action, Rule) and action.when else frozenset()
        if "signals.domain" in names:
            what = f"{path}.when reads signals.domain"
            yield _Reader((*place, "when"), what, fit.domains, f"{train} domains", ("signals", "domains"))
        if "signals.gain" in names and _reads_vectors(policies.signals.estimate):
            what, weights = f"{path}.when reads signals.gain", _weights(policies.signals.estimate)
            yield _Reader((*place, "when"), what, weights, f"{train} blend", ("signals", "estimate"))
        section = action.choose or action.cascade
        if section is not None and section.estimate is not None and _reads_vectors(section.estimate):
            key = (*place, action.destination, "estimate")
            yield _Reader(key, ".".join(key), _weights(section.estimate), f"{train} blend", key)


def _reads_vectors(estimate: str) -> bool:
    try:
        return load_estimate(estimate).needs_vector
    except WeightsError:  # reported where it is named
        return False


def _weights(estimate: str) -> Path:
    name = estimate.removeprefix(BUILTIN)
    return Path(name) if name == estimate else WEIGHTS / f"{name}.safetensors"
