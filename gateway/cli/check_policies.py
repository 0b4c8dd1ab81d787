"""`penstock check`: says what a policy folder defines, or what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from backend.encoder.language import LANGUAGES
from gateway.admin.policy_check import encoder_checkpoint, load_checked
from guardrails.checks.classifier import WEIGHTS, load_classifier
from policies.convert import KeyPath
from policies.document import EncoderModel
from policies.errors import Place, PolicyError, Problem


def check(folder: Path, out: TextIO) -> int:
    """Print what the folder defines; raise PolicyError with every problem. Opens no weights."""
    loaded = load_checked(folder)
    policies = loaded.policies
    if not policies.models:
        message = "defines no model; add one to the section `models`"
        raise PolicyError([Problem(Place(str(folder)), message)])
    for warning in loaded.warnings:
        out.write(f"{warning.place}: warning: {warning.message}\n")
    models = ", ".join(f"{name} ({entry.kind})" for name, entry in policies.models.items())
    targets = {name: route.targets() or [route.usual_target] for name, route in policies.routes.items()}
    routes = ", ".join(f"{name} -> {' | '.join(found) or 'refused'}" for name, found in targets.items())
    out.write(f"version {policies.version}\nmodels  {models or 'none'}\nroutes  {routes or 'none'}\n")
    for name, entry in policies.models.items():
        if entry.encoder is not None:
            out.write(f"encoder {_describe(name, entry.encoder)}\n")
            _warn_of_undetected(name, entry.encoder, loaded.places, out)
    if any(profile.needs_language for profile in policies.guardrails.profiles.values()):
        classifier = load_classifier(Path(policies.guardrails.classifier or WEIGHTS))
        for name, languages in classifier.languages.items():
            some = ", ".join(sorted(classifier.curves.keys() - languages)) or "no other language"
            out.write(f"{name} reads {', '.join(sorted(languages))}; finds some in {some}\n")
    if policies.probes:
        out.write(f"probes  {len(policies.probes)} passed\n")
    return 0


def _describe(name: str, encoder: EncoderModel) -> str:
    """An encoder in a line: what it runs on, how it makes vectors, what it reads."""
    found = encoder_checkpoint(encoder)
    prompt = f", after the prompt {found.prompt!r}" if found.prompt else ""
    return (
        f"{name}: {found.architecture} on {found.runtime}, {'+'.join(found.modules.pooling)} pooling, "
        f"{found.output_size} numbers, {found.max_tokens} tokens{prompt}; "
        f"reads {', '.join(encoder.languages)}"
    )


def _warn_of_undetected(
    name: str, encoder: EncoderModel, places: Mapping[KeyPath, Place], out: TextIO
) -> None:
    """Languages that no text will be found to be in."""
    if unknown := [code for code in encoder.languages if code not in LANGUAGES]:
        path = ("models", name, "encoder", "languages")
        out.write(
            f"{places[path]}: warning: {'.'.join(path)}: texts in {', '.join(unknown)} are taken for another "
            "language, as language detection does not know it\n"
        )
