"""Weights that read sentence vectors are used with the encoder that they were trained with, and no other."""

from __future__ import annotations

import shlex
from functools import cached_property
from pathlib import Path

from backend.classifiers.weights import read_card
from backend.encoder.checkpoint import BUILTIN, Reading
from backend.encoder.identity import EncoderIdentity, identity_of, identity_on
from cache.classifiers.linear import WEIGHTS as HEADS
from cache.verify.verifier import WEIGHTS as VERIFIER
from guardrails.checks.classifier import WEIGHTS as CLASSIFIER
from policies.document import EncoderModel, Policies
from router.signals.domain import WEIGHTS as DOMAINS


class EncoderFit:
    """The encoder that the policies compare meanings with, and the weights that read its vectors."""

    def __init__(self, policies: Policies) -> None:
        self._name = policies.encoder_name
        self._section = policies.encoder
        self.verifier = _path(policies.cache.verifier, VERIFIER)
        self.heads = _path(policies.cache.heads, HEADS)
        self.classifier = _path(policies.guardrails.classifier, CLASSIFIER)
        self.domains = _path(policies.signals.domains, DOMAINS)

    @cached_property
    def is_builtin(self) -> bool:
        """Whether it is the one that ships."""
        return self._section is not None and self.fits(identity_of(BUILTIN))

    @cached_property
    def identity(self) -> EncoderIdentity | None:
        """The encoder's; None without an encoder. Raises CheckpointError."""
        return None if self._section is None else _identity(self._section)

    def fits(self, trained_with: EncoderIdentity) -> bool:
        """Whether weights of that encoder can read these vectors; without vectors nothing is misread."""
        return self.identity is None or trained_with.digest == self.identity.digest

    def reads(self, path: Path) -> bool:
        """The same of a weights file. Raises WeightsError."""
        return self.fits(identity_on(read_card(path)))

    @cached_property
    def readable_heads(self) -> Path | None:
        """The heads' weights, if they can read the vectors. Raises WeightsError."""
        return self.heads if self.reads(self.heads) else None

    def misfit(self, path: Path, command: str, key: str) -> str:
        """Why weights cannot be used, and the remedy; "" if they can.

        `command` trains others, `key` of the policies names them. Raises WeightsError.
        """
        trained_with = identity_on(read_card(path))
        if self._section is None or self.fits(trained_with):
            return ""
        return (
            f"the weights {path.name!r} were trained with the encoder {trained_with}, but {self._name!r} is "
            f"{self.identity}; train others (`{command} {_flags(self._section)} --out FILE`) and name them "
            f"in `{key}`, or compare with {trained_with.name} (`cache.encoder`)"
        )


def _path(given: str | None, shipped: Path) -> Path:
    return shipped if given is None else Path(given)


def _flags(section: EncoderModel) -> str:
    """The flags of a training command that describe the encoder."""
    flags = ["--encoder", section.checkpoint, "--languages", ",".join(section.languages)]
    for name in ("prompt", "prompt_name", "pooling"):
        if (value := getattr(section, name)) is not None:
            flags += [f"--{name.replace('_', '-')}", value]
    return shlex.join(flags)


def _identity(section: EncoderModel) -> EncoderIdentity:
    reading = Reading(section.prompt, section.prompt_name, section.pooling)
    return identity_of(section.checkpoint, reading, section.languages)
