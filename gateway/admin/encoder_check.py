"""What `penstock check` and `serve` say about weights that lack their encoder: file, line and remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from backend.classifiers.weights import WeightsError, stamp
from backend.errors import CheckpointError
from cache.classifiers.linear import load_head
from cache.verify import Verifier
from gateway.encoder_fit import EncoderFit
from guardrails.checks.classifier import load_classifier
from policies.conditions import Condition
from policies.convert import KeyPath, nearest_place
from policies.document import Policies
from policies.errors import Place, PolicyError, Problem
from policies.load import Loaded
from policies.routes import Rule
from router.estimate import load_estimate
from router.estimate.estimate import weights_of
from router.signals.domain import load_domains


@dataclass(frozen=True, slots=True)
class _Reader:
    """A part that reads sentence vectors."""

    place: KeyPath  # where it is asked for
    what: str
    weights: Path
    command: str  # that trains other weights
    key: KeyPath  # that names them


def refuse_other_encoders(loaded: Loaded) -> None:
    """Raise PolicyError where weights would read vectors of another encoder than their own, or of none."""
    problems = [*encoder_problems(loaded)]
    if problems:
        raise PolicyError(problems)


def encoder_problems(loaded: Loaded) -> Iterator[Problem]:
    """The same one by one, and files that hold no such weights."""
    policies, fit = loaded.policies, EncoderFit(loaded.policies)
    faults = {key: _fault(load) for key, load in _given(fit).items() if key in loaded.places}
    broken = {key: fault for key, fault in faults.items() if fault}
    yield from (Problem(loaded.places[key], f"{'.'.join(key)}: {fault}") for key, fault in broken.items())
    if policies.encoder is None:
        yield from _lacking(loaded, fit)
        return
    readers = [*_cache(policies, fit), *_guardrails(policies, fit), *_rules(policies, fit)]
    for reader in (each for each in readers if each.key not in broken):
        try:
            fault = fit.misfit(reader.weights, reader.command, ".".join(reader.key))
        except WeightsError as error:
            fault = str(error)
        except CheckpointError:
            return  # reported where the encoder is
        if fault:
            yield Problem(_place(loaded, reader), f"{reader.what}: {fault}")


def _lacking(loaded: Loaded, fit: EncoderFit) -> Iterator[Problem]:
    """Estimates that read vectors, where there is no encoder; loading has refused what else needs one."""
    for reader in _rules(loaded.policies, fit):
        message = (
            f"{reader.what}: the weights {reader.weights.name!r} read sentence vectors, which needs an "
            "encoder; add a model with a section `encoder`, or name an estimate of words alone, such as "
            f"builtin:pico, in `{'.'.join(reader.key)}`"
        )
        yield Problem(_place(loaded, reader), message)


def _place(loaded: Loaded, reader: _Reader) -> Place:
    return nearest_place(loaded.places, reader.key if reader.key in loaded.places else reader.place)


def _given(fit: EncoderFit) -> dict[KeyPath, Callable[[], object]]:
    """What loads the weights that a key names."""
    return {
        ("cache", "verifier"): lambda: Verifier.load(fit.verifier),
        ("cache", "heads"): lambda: load_head("followup", fit.heads),
        ("guardrails", "classifier"): lambda: load_classifier(fit.classifier, stamp(fit.classifier)),
        ("signals", "domains"): lambda: load_domains(fit.domains),
    }


def _fault(load: Callable[[], object]) -> str:
    try:
        load()
    except WeightsError as error:
        return str(error)
    except (KeyError, ValueError, IndexError) as error:
        return f"the file holds weights of another kind ({type(error).__name__}: {error})"
    return ""


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
            what, weights = f"{path}.when reads signals.gain", weights_of(policies.signals.estimate)
            yield _Reader((*place, "when"), what, weights, f"{train} blend", ("signals", "estimate"))
        section = action.choose or action.cascade
        if section is not None and section.estimate is not None and _reads_vectors(section.estimate):
            key = (*place, action.destination, "estimate")
            yield _Reader(key, ".".join(key), weights_of(section.estimate), f"{train} blend", key)


def _reads_vectors(estimate: str) -> bool:
    try:
        return load_estimate(estimate).needs_vector
    except WeightsError:  # reported where it is named
        return False
