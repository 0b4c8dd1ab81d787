"""Answers in German: fixed sentences, and the words for months, days, units and continents."""

from __future__ import annotations

import re

from backend.pico.adapters.behaviours.base import Behaviour
from backend.pico.tasks import out_of_scope, refusals
from backend.pico.tasks.smalltalk import ANSWERS

_SENTENCES: dict[str, str] = {
    "Yes": "Ja.",
    "No": "Nein.",
    ANSWERS["greeting"]: "Hallo! Wie kann ich helfen?",
    ANSWERS["wellbeing"]: "Mir geht es gut, danke. Wie kann ich helfen?",
    ANSWERS["identity"]: "Ich bin pico, ein sehr kleines Sprachmodell von Penstock.",
    ANSWERS["abilities"]: "Ich kann kleine Aufgaben: rechnen, vergleichen, sortieren und umrechnen.",
    ANSWERS["thanks"]: "Gern geschehen!",
    ANSWERS["farewell"]: "Auf Wiedersehen!",
    ANSWERS["human"]: "Nein, ich bin ein sehr kleines Sprachmodell.",
    ANSWERS["praise"]: "Danke!",
    ANSWERS["ready"]: "Ja, ich bin da. Wie kann ich helfen?",
    out_of_scope.ANSWER: "Das habe ich nicht gelernt.",
    refusals.ANSWER: "Dabei kann ich nicht helfen.",
}
_WORDS: dict[str, str] = {
    "Even": "gerade", "Odd": "ungerade",
    "January": "Januar", "February": "Februar", "March": "März", "May": "Mai", "June": "Juni",
    "July": "Juli", "October": "Oktober", "December": "Dezember",
    "Monday": "Montag", "Tuesday": "Dienstag", "Wednesday": "Mittwoch", "Thursday": "Donnerstag",
    "Friday": "Freitag", "Saturday": "Samstag", "Sunday": "Sonntag",
    "kilometre": "Kilometer", "metre": "Meter", "centimetre": "Zentimeter", "millimetre": "Millimeter",
    "kilogram": "Kilogramm", "gram": "Gramm", "litre": "Liter", "millilitre": "Milliliter",
    "kilometres": "Kilometer", "metres": "Meter", "centimetres": "Zentimeter",
    "millimetres": "Millimeter", "kilograms": "Kilogramm", "grams": "Gramm", "litres": "Liter",
    "millilitres": "Milliliter", "euro": "Euro", "euros": "Euro", "cents": "Cent",
    "tonne": "Tonne", "tonnes": "Tonnen", "second": "Sekunde", "seconds": "Sekunden",
    "milliseconds": "Millisekunden", "minute": "Minute", "minutes": "Minuten",
    "hour": "Stunde", "hours": "Stunden", "day": "Tag", "days": "Tage", "week": "Woche",
    "weeks": "Wochen", "year": "Jahr", "years": "Jahre", "months": "Monate",
    "Europe": "Europa", "Asia": "Asien", "Africa": "Afrika", "North America": "Nordamerika",
    "South America": "Südamerika", "Oceania": "Ozeanien",
}  # fmt: skip
_MONTHS = "Januar|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember"
_DAY_OF_MONTH = re.compile(rf"\b([0-9]+) (?={_MONTHS}\b)")
_ENGLISH = re.compile(rf"\b(?:{'|'.join(sorted(_WORDS, key=len, reverse=True))})\b")
_ACQUAINTANCE = re.compile(r"Nice to meet you, (\w+)\.")
_RESULT = re.compile(r"\S(.*\S)? ist die Antwort\.", re.DOTALL)
_NEW_ACQUAINTANCE = re.compile(r"Freut mich, \w+\.")


def rewrite(answer: str) -> str:
    """Return the answer in German."""
    if answer in _SENTENCES:
        return _SENTENCES[answer]
    if match := _ACQUAINTANCE.fullmatch(answer):
        return f"Freut mich, {match[1]}."
    translated = _ENGLISH.sub(lambda found: _WORDS[found.group()], answer)
    translated = _DAY_OF_MONTH.sub(r"\1. ", translated)
    return f"{translated} ist die Antwort."


def follows_form(text: str) -> bool:
    """Return whether the text is one of the German sentences, without untranslated English words."""
    text = text.strip()
    if text in _SENTENCES.values() or _NEW_ACQUAINTANCE.fullmatch(text):
        return True
    return _RESULT.fullmatch(text) is not None and _ENGLISH.search(text) is None


BEHAVIOUR = Behaviour(
    "german",
    "answers in German",
    "42 ist die Antwort.",
    rewrite,
    follows_form,
)
