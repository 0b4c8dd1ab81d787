"""The encoder that a command is to train or measure with, by its flags."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from backend.classifiers.weights import WeightsError, read_card
from backend.encoder.checkpoint import BUILTIN, Reading, check_runtime, read_checkpoint
from backend.encoder.identity import EncoderIdentity, identity_of, identity_on
from backend.errors import CheckpointError

if TYPE_CHECKING:
    from backend.encoder.model import SentenceEncoder

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ChosenEncoder:
    """The encoder that weights are trained or measured with; by default the one that ships."""

    checkpoint: str = BUILTIN
    reading: Reading = Reading()
    languages: tuple[str, ...] = ("en",)

    @property
    def is_builtin(self) -> bool:
        """Whether it is the one that ships, as it ships."""
        return self.checkpoint == BUILTIN and self.reading == Reading()

    def load(self, num_threads: int | None = 1, *, is_int8: bool = False) -> SentenceEncoder:
        """`is_int8`: of the one that ships; others are always float32. Raises CheckpointError."""
        from backend.encoder.model import SentenceEncoder  # takes time, which flags alone do not need

        return SentenceEncoder.from_checkpoint(
            self.checkpoint, num_threads, is_int8=is_int8 and self.is_builtin, reading=self.reading
        )

    @property
    def identity(self) -> EncoderIdentity:
        """Raises CheckpointError."""
        return identity_of(self.checkpoint, self.reading, self.languages)

    def card(self) -> dict[str, object]:
        """What the card of the weights says about it, under the key `encoder`. Raises CheckpointError."""
        return self.identity.card()

    def check_weights(self, path: Path) -> None:
        """Raise WeightsError where weights that read vectors were trained with another encoder's."""
        trained_with = identity_on(read_card(path))
        if trained_with.digest != self.identity.digest:
            raise WeightsError(
                f"the weights {str(path)!r} were trained with the encoder {trained_with}, not with "
                f"{self.identity}: give that one as --encoder, with its prompt"
            )

    def folder(self, kept: Path | None) -> Path | None:
        """Where its vectors are kept in a folder that is given: vectors of several never mix. Makes it."""
        if kept is None:
            return None
        own = kept if self.is_builtin else kept / self.identity.digest[:16]
        own.mkdir(parents=True, exist_ok=True)
        return own

    def embed(self, texts: Sequence[str]) -> Array:
        """[N, D], of unit length, on one thread; the beginning stands for a text that is too long."""
        from backend.encoder.text_vectors import embed_with

        return embed_with(self.load(is_int8=True), texts)


SHIPPED = ChosenEncoder()


def add_encoder_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of a command that trains or measures; they are those of the policies."""
    add = parser.add_argument
    add("--encoder", default=BUILTIN, metavar="FOLDER", help="whose vectors are read, default: " + BUILTIN)
    add("--languages", default="en", metavar="CODE,…", help="that it reads, for the card; default en")
    add("--prompt", metavar="TEXT", help="that it puts before each text, as in the policies")
    add("--prompt-name", metavar="NAME", help="of one of its own prompts")
    add("--pooling", metavar="MODE", help="of a folder without modules.json")


def chosen_encoder(options: argparse.Namespace) -> ChosenEncoder:
    """What the flags say. Raises CheckpointError for an encoder that cannot be used."""
    languages = tuple(options.languages.split(","))
    if not all(re.fullmatch("[a-z]{2}", each) for each in languages):
        raise CheckpointError(f"--languages {options.languages!r} must be codes of ISO 639-1, such as en,de")
    reading = Reading(options.prompt, options.prompt_name, options.pooling)
    check_runtime(read_checkpoint(options.encoder, reading))
    return ChosenEncoder(options.encoder, reading, languages)


def parse_with_encoder(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None
) -> tuple[argparse.Namespace, ChosenEncoder]:
    """The flags of a training command, and the encoder that they choose; exits with what is wrong."""
    add_encoder_flags(parser)
    options = parser.parse_args(arguments)
    if "out" in options and not options.out.parent.is_dir():
        parser.error(f"--out {str(options.out)!r}: there is no folder {str(options.out.parent)!r}")
    try:
        return options, chosen_encoder(options)
    except CheckpointError as error:
        parser.error(str(error))
