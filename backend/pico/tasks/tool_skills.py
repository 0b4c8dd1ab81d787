"""The skills of tools in the family `tools`: names, parameters, questions and results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from backend.pico.tasks.base import Tool
from backend.pico.tasks.tool_calls import call_text
from backend.pico.tasks.words import INVENTED_SHARE, ITEMS, JOBS, city, invented_word, noun, person

Values = tuple[str | int, ...]
_SKIES = ("sunny", "rainy", "cloudy", "windy", "snowy")
_LANGUAGES = ("German", "French", "Spanish", "Italian", "Dutch", "Polish", "Latin", "Greek")


@dataclass(frozen=True, slots=True)
class Skill:
    """A kind of tool; each of its parameters and descriptions has several names."""

    kind: str
    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    parameters: tuple[tuple[tuple[str, ...], str], ...]  # (names, JSON type)
    questions: tuple[str, ...]
    draw: Callable[[Random], Values]
    result: Callable[[Random, Values], str]

    def key(self, values: Values) -> str:
        """Return the part of a question's key that depends on the values."""
        return f"{self.kind}:{'|'.join(map(str, values))}"

    def ask(self, values: Values) -> list[str]:
        """Return all phrasings of the question."""
        return [question.format(*values) for question in self.questions]


@dataclass(frozen=True, slots=True)
class Offer:
    """A skill under the name and parameters that the client gave it."""

    skill: Skill
    tool: Tool

    def call(self, values: Values) -> str:
        """Return the call in the model's syntax."""
        return call_text(self.tool.name, dict(zip(self._parameters(), values, strict=True)))

    def steps(self, values: Values, kinds: Sequence[str]) -> str:
        """Return the steps before the call: the kind wanted, the tools up to that kind, the arguments."""
        found = next(place for place, kind in enumerate(kinds) if kind.startswith(f'"{self.tool.name}" '))
        return f"{self.skill.kind}: {'; '.join(kinds[: found + 1])}, {self.arguments(values)}"

    def arguments(self, values: Values) -> str:
        """Return the parameters with their values, the last step before a call."""
        pairs = zip(self._parameters(), values, strict=True)
        return ", ".join(f'"{name}"={value}' for name, value in pairs)

    def _parameters(self) -> list[str]:
        return [name for name, _ in self.tool.parameters]


def offer(rng: Random, skill: Skill, *, renamed: bool = False) -> Offer:
    """Name the skill, with an invented name if `renamed`."""
    name = f"{invented_word(rng)}_{invented_word(rng)}" if renamed else rng.choice(skill.names)
    parameters = tuple((rng.choice(names), kind) for names, kind in skill.parameters)
    return Offer(skill, Tool(name, rng.choice(skill.descriptions), parameters))


def seen(offered: Sequence[Offer], tools: Sequence[Tool]) -> list[str]:
    """Return each tool's name, quoted as in a call, with its kind, in the client's order."""
    kinds = {offer.tool.name: offer.skill.kind for offer in offered}
    return [f'"{tool.name}" {kinds[tool.name]}' for tool in tools]


def offers(rng: Random, needed: Sequence[Skill], count: int, *, renamed: bool = False) -> list[Offer]:
    """Return an offer for each needed skill, in that order, then others up to the count."""
    others = [skill for skill in SKILLS if skill not in needed]
    chosen = [*needed, *rng.sample(others, count - len(needed))]
    return [offer(rng, skill, renamed=renamed) for skill in chosen]


def items(rng: Random) -> str:
    """Return a plural noun, sometimes invented."""
    return f"{invented_word(rng)}s" if rng.random() < 2 * INVENTED_SHARE else rng.choice(ITEMS)


def evaluate(expression: str) -> int:
    """Return the value of `A op B` with op one of + - *."""
    left, operator, right = expression.split(" ")
    first, second = int(left), int(right)
    return {"+": first + second, "-": first - second, "*": first * second}[operator]


def _expression(rng: Random) -> Values:
    left, right = rng.randint(10, 999), rng.randint(2, 999)
    operator = rng.choice("+-*")
    return (f"{max(left, right)} {operator} {min(left, right)}",)


def _weather(rng: Random, values: Values) -> str:
    return f"{rng.choice(_SKIES)}, {rng.randint(0, 35)} degrees"


CALCULATOR = Skill(
    "calculate",
    ("calculator", "calculate", "compute", "math", "solve"),
    ("Compute an expression.", "Calculate an expression.", "Evaluate arithmetic."),
    ((("expression", "formula", "input"), "string"),),
    ("What is {0}?", "Calculate {0}.", "Compute {0}.", "How much is {0}?", "Work out {0}.", "{0} ="),
    _expression,
    lambda rng, values: str(evaluate(str(values[0]))),
)
WEATHER = Skill(
    "weather",
    ("get_weather", "weather", "current_weather", "weather_report"),
    ("Get the weather of a city.", "Tell the weather in a city.", "Look up the weather."),
    ((("city", "place", "location"), "string"),),
    (
        "What is the weather in {0}?",
        "How is the weather in {0}?",
        "Tell me the weather in {0}.",
        "What is the weather like in {0}?",
    ),
    lambda rng: (city(rng),),
    _weather,
)
TIME = Skill(
    "time",
    ("get_time", "clock", "local_time", "time_in"),
    ("Get the local time of a city.", "Tell the time in a city.", "Look up the time."),
    ((("city", "place", "location"), "string"),),
    (
        "What time is it in {0}?",
        "Tell me the time in {0}.",
        "What is the time in {0}?",
        "How late is it in {0}?",
    ),
    lambda rng: (city(rng),),
    lambda rng, values: f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}",
)
PRICE = Skill(
    "price",
    ("get_price", "price_of", "price_list", "find_price"),
    ("Get the price of an item.", "Find the price of one item.", "Look up a price."),
    ((("item", "name", "product"), "string"),),
    (
        "What is the price of {0}?",
        "How much do {0} cost?",
        "Tell me the price of {0}.",
        "Find the price of {0}.",
    ),
    lambda rng: (items(rng),),
    lambda rng, values: f"{rng.randint(2, 99)} dollars",
)
STOCK = Skill(
    "stock",
    ("get_stock", "count_stock", "stock", "in_stock"),
    ("Count an item in stock.", "Tell how many of an item are in stock.", "Look up the stock."),
    ((("item", "name", "product"), "string"),),
    (
        "How many {0} are in stock?",
        "Count the {0} in stock.",
        "What is the stock of {0}?",
        "How many {0} are left in stock?",
    ),
    lambda rng: (items(rng),),
    lambda rng, values: str(rng.randint(2, 999)),
)
HOME = Skill(
    "home",
    ("find_home", "get_home", "home_of", "city_of"),
    ("Find the city where a person lives.", "Look up the home of a person.", "Get the city of a person."),
    ((("person", "name", "who"), "string"),),
    (
        "Where does {0} live?",
        "In which city does {0} live?",
        "Find the home of {0}.",
        "Tell me where {0} lives.",
    ),
    lambda rng: (person(rng),),
    lambda rng, values: city(rng),
)
JOB = Skill(
    "job",
    ("find_job", "get_job", "job_of", "work_of"),
    ("Find the job of a person.", "Look up the work of a person.", "Get the job of a person."),
    ((("person", "name", "who"), "string"),),
    (
        "What is the job of {0}?",
        "What does {0} work as?",
        "Find the job of {0}.",
        "Tell me the job of {0}.",
    ),
    lambda rng: (person(rng),),
    lambda rng, values: rng.choice(JOBS),
)
DISTANCE = Skill(
    "distance",
    ("get_distance", "distance", "how_far", "distance_between"),
    ("Get the distance between two cities.", "Measure how far two cities are.", "Look up a distance."),
    ((("from", "start", "first"), "string"), (("to", "end", "second"), "string")),
    (
        "How far is it from {0} to {1}?",
        "What is the distance from {0} to {1}?",
        "Tell me the distance between {0} and {1}.",
        "How far is {0} from {1}?",
    ),
    lambda rng: (city(rng), city(rng)),
    lambda rng, values: f"{rng.randint(20, 999)} km",
)
TRANSLATE = Skill(
    "translate",
    ("translate", "translator", "get_translation", "translate_word"),
    ("Translate a word.", "Translate a word into a language.", "Look up a word in a language."),
    ((("word", "text", "input"), "string"), (("language", "to", "target"), "string")),
    (
        "Translate {0} into {1}.",
        "What is {0} in {1}?",
        "How do you say {0} in {1}?",
        "Tell me the word {0} in {1}.",
    ),
    lambda rng: (noun(rng), rng.choice(_LANGUAGES)),
    lambda rng, values: invented_word(rng),
)
TIMER = Skill(
    "timer",
    ("set_timer", "timer", "start_timer", "alarm"),
    ("Set a timer.", "Start a timer of some minutes.", "Start a timer."),
    ((("minutes", "length", "time"), "number"),),
    (
        "Set a timer of {0} minutes.",
        "Start a timer for {0} minutes.",
        "Tell me when {0} minutes are over.",
        "Set a timer for {0} minutes.",
    ),
    lambda rng: (rng.randint(2, 240),),
    lambda rng, values: "done",
)
SKILLS = (CALCULATOR, WEATHER, TIME, PRICE, STOCK, HOME, JOB, DISTANCE, TRANSLATE, TIMER)
SIMPLE = (CALCULATOR, WEATHER, TIME, PRICE, STOCK, HOME, JOB)  # one string each as input
