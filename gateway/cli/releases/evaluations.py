"""What `penstock eval models --json` has found out about a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from backend.classifiers.measures import wilson
from gateway.settings import SettingsError


class _Run(msgspec.Struct):
    model: str
    accuracy: float
    questions: int
    is_complete: bool = False


class _File(msgspec.Struct):
    models: list[_Run]
    began: str = ""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One model's figures."""

    accuracy: float
    num_questions: int
    began: str
    is_complete: bool

    @property
    def told(self) -> str:
        """The accuracy in words, with its 95 % interval."""
        low, high = wilson(round(self.accuracy * self.num_questions), self.num_questions)
        return (
            f"accuracy {self.accuracy:.4f} on {self.num_questions} questions, "
            f"95 % interval {low:.3f} to {high:.3f}"
        )


def read_evaluation(path: str, model: str) -> Evaluation:
    """The evaluation of a model in the file. Raises SettingsError."""
    try:
        found = msgspec.json.decode(Path(path).read_bytes(), type=_File)
    except OSError as error:
        raise SettingsError(f"the evaluation {path} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise SettingsError(f"{path} is no file of `penstock eval models --json`: {error}") from None
    for run in found.models:
        if run.model == model:
            return Evaluation(run.accuracy, run.questions, found.began, run.is_complete)
    known = ", ".join(run.model for run in found.models) or "nothing"
    raise SettingsError(f"{path} does not evaluate {model!r}, but {known}")
