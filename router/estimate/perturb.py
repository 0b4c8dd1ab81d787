"""Changes to a prompt that leave its difficulty as it is: typing errors, case, punctuation, politeness."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

_BEFORE = ("Hi! ", "Hello, ", "Please help me. ", "Quick question: ", "Could you tell me: ")
_SMALL_TALK = (
    "Good morning from a rainy harbour town", "I hope that your week has been kind to you", "hey there",
    "We have just come back from a long walk with the dog", "how are you doing?", "Guten Abend zusammen",
    "Ich hoffe, du hattest einen schönen Urlaub", "wie läuft es bei dir?", "Buenas tardes", "¿qué tal todo?",
    "Acabo de volver del mercado con mi tía", "Bonsoir à tous", "J'espère que tu te portes bien", "Bom dia",
    "Il fait un temps superbe chez nous", "Buongiorno", "spero che tu stia bene", "Hoi, alles goed?",
    "espero que esteja tudo bem", "Dzień dobry", "Доброе утро", "как у тебя дела?", "皆さんこんにちは。",
)  # fmt: skip
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


def add_small_talk(draw: Random, text: str) -> str:
    """Begins with up to four remarks that ask for nothing, in ten languages."""
    said = draw.sample(_SMALL_TALK, draw.randint(1, 4))
    return "".join(each + draw.choice((", ", ". ", "! ", " ", "\n")) for each in said) + text


def add_after(draw: Random, text: str) -> str:
    """Ends with thanks."""
    return text + draw.choice(_AFTER)


PERTURBATIONS: dict[str, Callable[[Random, str], str]] = {
    "mistyped": mistype,
    "letter missing": drop_letter,
    "lower case": lower,
    "upper case": upper,
    "greeting before": add_before,
    "small talk before": add_small_talk,
    "thanks after": add_after,
}


def perturb(draw: Random, text: str) -> str:
    """One change at random."""
    return draw.choice(list(PERTURBATIONS.values()))(draw, text)
