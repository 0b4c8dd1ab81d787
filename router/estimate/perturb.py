"""Changes to a prompt that leave its difficulty as it is: typing errors, case, punctuation, politeness."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

_BEFORE = ("Hi! ", "Hello, ", "Please help me. ", "Quick question: ", "Could you tell me: ")
_AFTER = (" Thanks!", " Thank you in advance.", " please", " Thanks a lot for your help!", " ASAP", "!!")


def mistype(draw: Random, text: str) -> str:
    """Two adjacent letters are swapped."""
    places = [i for i in range(len(text) - 1) if text[i].isalpha() and text[i + 1].isalpha()]
    if not places:
        return text
    i = draw.choice(places)
    return text[:i] + text[i + 1] + text[i] + text[i + 2 :]


def drop_letter(draw: Random, text: str) -> str:
    """One letter is missing."""
    places = [i for i, char in enumerate(text) if char.isalpha()]
    if not places:
        return text
    i = draw.choice(places)
    return text[:i] + text[i + 1 :]


def lower(draw: Random, text: str) -> str:
    """Without capitals and the final punctuation."""
    return text.lower().rstrip("?.! ")


def upper(draw: Random, text: str) -> str:
    """In capitals."""
    return text.upper()


def add_before(draw: Random, text: str) -> str:
    """Begins with a greeting."""
    return draw.choice(_BEFORE) + text


def add_after(draw: Random, text: str) -> str:
    """Ends with thanks."""
    return text + draw.choice(_AFTER)


PERTURBATIONS: dict[str, Callable[[Random, str], str]] = {
    "mistyped": mistype,
    "letter missing": drop_letter,
    "lower case": lower,
    "upper case": upper,
    "greeting before": add_before,
    "thanks after": add_after,
}


def perturb(draw: Random, text: str) -> str:
    """One change at random."""
    return draw.choice(list(PERTURBATIONS.values()))(draw, text)
