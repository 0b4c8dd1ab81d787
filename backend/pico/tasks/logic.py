"""Logical conclusions: orders, truth of claims, if-then chains, classes, liars, boolean expressions."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from backend.pico.tasks.base import Draw, Family, exercise, join_words
from backend.pico.tasks.words import CATEGORIES, FIRST_NAMES, JOBS, with_article

# Comparatives upwards and downwards, then the superlatives.
_SCALES = (
    ("taller", "shorter", "tallest", "shortest"),
    ("older", "younger", "oldest", "youngest"),
    ("faster", "slower", "fastest", "slowest"),
    ("bigger", "smaller", "biggest", "smallest"),
)
_ABILITIES = ("sing", "cook", "read", "talk", "fly", "work", "play", "count")
_OBJECTS = tuple(CATEGORIES["vehicle"] + CATEGORIES["furniture"])
_COLOURS = CATEGORIES["colour"]
_DRILL_QUESTIONS = 6
_CLASSES = tuple(CATEGORIES["animal"] + JOBS)
_RANKS = ("", "second ", "third ", "fourth ")
_REDUCIBLE = re.compile(
    r"not (true|false)|\((true|false) (and|or) (true|false)\)|^(true|false) (and|or) (true|false)$"
)


def _ask(text: str, questions: list[str], answer: str, thought: str) -> Draw:
    """Put the text before each question; the key is the text alone, as in extraction."""
    prompts = [f"{text} {question}" for question in questions]
    prompts += [f"{text}\n{questions[0]}", f"Text: {text}\nQuestion: {questions[-1]}"]
    return Draw(prompts, answer, text, thought)


# --- Who is the tallest? ---------------------------------------------------------------------------------


def _link(high: str, low: str) -> str:
    """Return one relation in both directions: `Ann > Ben < Ann`."""
    return f"{high} > {low} < {high}"


def _order_of_two(rng: Random) -> Draw:
    high, low = rng.sample(FIRST_NAMES, 2)
    more, less, _, _ = rng.choice(_SCALES)
    text = rng.choice((f"{high} is {more} than {low}.", f"{low} is {less} than {high}."))
    asked, answer = rng.choice(((more, high), (less, low)))
    questions = [f"Who is {asked}?", f"Which of them is {asked}?", f"Which one is {asked}?"]
    return _ask(text, questions, answer, f"{_link(high, low)}; {asked} {answer}")


@dataclass(frozen=True, slots=True)
class _Order:
    """People in descending order, the shuffled sentences that determine it, and the steps."""

    people: list[str]
    text: str
    steps: str
    most: str
    least: str


def _order(rng: Random, count: int, *, both: bool) -> _Order:
    people = rng.sample(FIRST_NAMES, count)
    more, less, most, least = rng.choice(_SCALES)
    links = list(itertools.pairwise(people))
    rng.shuffle(links)
    statements = [
        f"{low} is {less} than {high}." if both and rng.random() < 0.5 else f"{high} is {more} than {low}."
        for high, low in links
    ]
    # From the first person named up to the top, then from the top down to the bottom.
    upwards = people[people.index(links[0][0]) :: -1]
    steps = [_link(high, low) for high, low in links]
    steps += [f"up {' < '.join(upwards)}", f"down {' > '.join(people)}"]
    return _Order(people, " ".join(statements), "; ".join(steps), most, least)


def _order_of_three(rng: Random) -> Draw:
    order = _order(rng, 3, both=False)
    asked, answer = rng.choice(((order.most, order.people[0]), (order.least, order.people[-1])))
    return _ask(order.text, _who(asked), answer, f"{order.steps}; {asked} {answer}")


def _who(asked: str) -> list[str]:
    return [f"Who is the {asked}?", f"Which person is the {asked}?", f"Who is the {asked} of them?"]


def _order_end(rng: Random, count: int) -> Draw:
    order = _order(rng, count, both=True)
    asked, answer = rng.choice(((order.most, order.people[0]), (order.least, order.people[-1])))
    return _ask(order.text, _who(asked), answer, f"{order.steps}; {asked} {answer}")


def _order_rank(rng: Random, count: int) -> Draw:
    order = _order(rng, count, both=True)
    place = rng.randint(1, min(count, len(_RANKS)) - 1)
    answer = order.people[place]
    counted = " ".join(f"{rank} {name}" for rank, name in enumerate(order.people[: place + 1], start=1))
    return _ask(order.text, _who(_RANKS[place] + order.most), answer, f"{order.steps}; {counted}")


def _order_all(rng: Random, count: int) -> Draw:
    order = _order(rng, count, both=True)
    questions = [
        f"Sort them from the {order.most} to the {order.least}.",
        f"List all from the {order.most} to the {order.least}.",
        f"What is the order from the {order.most} to the {order.least}?",
    ]
    return _ask(order.text, questions, join_words(order.people), order.steps)


# --- Is it true? -----------------------------------------------------------------------------------------


def _said(yes: bool) -> str:
    return "Yes" if yes else "No"


def _coloured(things: list[str], colours: list[str]) -> str:
    return " ".join(f"The {thing} is {colour}." for thing, colour in zip(things, colours, strict=True))


def _truth_of_one(rng: Random) -> Draw:
    things, colours = rng.sample(_OBJECTS, 2), rng.sample(_COLOURS, 3)
    return _claim_of_one(rng, _coloured(things, colours[:2]), things, colours)


def _claim_of_one(rng: Random, text: str, things: list[str], colours: list[str]) -> Draw:
    """Claim something about one of the things; the text may also name colours of others."""
    place = rng.randrange(len(things))
    asked = colours[place] if rng.random() < 0.5 else rng.choice(colours)
    thing, real = things[place], colours[place]
    questions = [
        f"Is the {thing} {asked}?",
        f"Is it true that the {thing} is {asked}?",
        f"Yes or no: the {thing} is {asked}.",
    ]
    return _ask(
        text, questions, _said(real == asked), f"{thing} {asked}: {real} {_said(real == asked).lower()}"
    )


def _truth_of_two(rng: Random) -> Draw:
    things, colours = rng.sample(_OBJECTS, 2), rng.sample(_COLOURS, 2)
    return _claim_of_two(rng, _coloured(things, colours), things, colours)


def _claim_of_two(rng: Random, text: str, things: list[str], colours: list[str]) -> Draw:
    claims = [colour if rng.random() < 0.6 else rng.choice(_COLOURS) for colour in colours]
    facts = [claim == colour for claim, colour in zip(claims, colours, strict=True)]
    word = rng.choice(("and", "or"))
    claim = f"the {things[0]} is {claims[0]} {word} the {things[1]} is {claims[1]}"
    answer = _said(all(facts) if word == "and" else any(facts))
    questions = [f"Is it true that {claim}?", f"Yes or no: {claim}.", f"Is this right: {claim}?"]
    steps = [
        f"{thing} {claimed}: {colour} {_said(fact).lower()}"
        for thing, claimed, colour, fact in zip(things, claims, colours, facts, strict=True)
    ]
    return _ask(text, questions, answer, f"{f' {word} '.join(steps)}: {answer.lower()}")


# --- If it is so, then what? -----------------------------------------------------------------------------


def _chain(rng: Random, length: int, spare: int) -> Draw:
    """Rules from one coloured thing to the next; spare rules need colours that no thing has."""
    things = rng.sample(_OBJECTS, length + 1)
    colours = [rng.choice(_COLOURS) for _ in things]
    broken = rng.randrange(length) if rng.random() < 0.2 else length
    rules = []
    for place in range(length):
        needed = colours[place] if place != broken else _another(rng, colours[place])
        rules.append((things[place], needed, things[place + 1], colours[place + 1]))
    for _ in range(spare):
        place = rng.randrange(length)
        taken = {rule[1] for rule in rules if rule[0] == things[place]} | {colours[place]}
        needed = rng.choice([colour for colour in _COLOURS if colour not in taken])
        rules.append((things[place], needed, things[place + 1], _another(rng, colours[place + 1])))
    rng.shuffle(rules)
    sentences = [f"If the {a} is {b}, the {c} is {d}." for a, b, c, d in rules]
    sentences.insert(rng.choice((0, len(sentences))), f"The {things[0]} is {colours[0]}.")
    answer = colours[-1] if broken == length else "unknown"
    # In the words of the rules: a condition is found by its literal text.
    known = [f"the {thing} is {colour}" for thing, colour in zip(things, colours, strict=True)][: broken + 1]
    steps = known if broken == length else [*known, "unknown"]
    return _ask(" ".join(sentences), _colour_of(things[-1]), answer, ", ".join(steps))


def _another(rng: Random, colour: str) -> str:
    return rng.choice([other for other in _COLOURS if other != colour])


def _colour_of(thing: str) -> list[str]:
    return [
        f"What colour is the {thing}?",
        f"What is the colour of the {thing}?",
        f"Which colour is the {thing}?",
    ]


def _ability(rng: Random, rules: int) -> Draw:
    """Members of a class can do what the class can do."""
    name, skill = rng.choice(FIRST_NAMES), rng.choice(_ABILITIES)
    classes = rng.sample(_CLASSES, rules)
    can = [rng.random() < 0.5] if rules == 1 else rng.sample((True, False), 2)
    texts = [
        f"Every {kind} can {skill}." if able else f"No {kind} can {skill}."
        for kind, able in zip(classes, can, strict=True)
    ]
    text = f"{' '.join(texts)} {name} is {with_article(classes[0])}."
    if rules == 2 and rng.random() < 0.5:
        text = f"{texts[1]} {texts[0]} {name} is {with_article(classes[0])}."
    answer = _said(can[0])
    steps = f"{name} {classes[0]}; {classes[0]} {'can' if can[0] else 'cannot'}: {answer.lower()}"
    return _ask(text, _can(name, skill), answer, steps)


def _can(name: str, skill: str) -> list[str]:
    return [
        f"Can {name} {skill}?",
        f"Is it true that {name} can {skill}?",
        f"Yes or no: can {name} {skill}?",
    ]


def _classes(rng: Random, length: int, spare: int) -> Draw:
    """Chains of classes up to an ability: the one asked about, and distractors."""
    skills = rng.sample(_ABILITIES, spare + 1)
    names = rng.sample(FIRST_NAMES, spare + 1)
    kinds = rng.sample(_CLASSES, length * (spare + 1))
    statements: list[str] = []
    for place, name in enumerate(names):
        chain = kinds[place * length : (place + 1) * length]
        statements.append(f"{name} is {with_article(chain[0])}.")
        statements += [f"Every {a} is {with_article(b)}." for a, b in itertools.pairwise(chain)]
        statements.append(f"Every {chain[-1]} can {skills[place]}.")
    rng.shuffle(statements)
    questions = [
        f"What can {names[0]} do?",
        f"Which thing can {names[0]} do?",
        f"Say in one word what {names[0]} can do.",
    ]
    steps = " ".join([names[0], *kinds[:length], skills[0]])
    return _ask(" ".join(statements), questions, skills[0], steps)


# --- Who lies? -------------------------------------------------------------------------------------------


def _word(honest: bool) -> str:
    return "true" if honest else "lies"


def _liars(rng: Random, count: int, *, shuffled: bool) -> Draw:
    """The first person is known; each further one claims whether the previous one lies."""
    people = rng.sample(FIRST_NAMES, count)
    honest = [rng.random() < 0.5 for _ in people]
    statements = [f"{people[0]} {'tells the truth' if honest[0] else 'lies'}."]
    for place in range(1, count):
        claim = "tells the truth" if honest[place] == honest[place - 1] else "lies"
        statements.append(f"{people[place]} says that {people[place - 1]} {claim}.")
    if shuffled:
        rng.shuffle(statements)
    steps = [f"{people[0]} {_word(honest[0])} {int(not honest[0])}"]
    for place in range(1, count):
        # The claim and its subject; it holds if the two are alike.
        claim = _word(honest[place] == honest[place - 1])
        about = f"{people[place - 1]} {_word(honest[place - 1])}, {people[place]} says {claim}"
        steps.append(f"{about}: {people[place]} {_word(honest[place])} {honest[: place + 1].count(False)}")
    last, thought = people[-1], "; ".join(steps)
    if rng.random() < 0.5:
        questions = [
            f"Does {last} tell the truth?",
            f"Is {last} honest?",
            f"Yes or no: {last} tells the truth.",
        ]
        return _ask(" ".join(statements), questions, _said(honest[-1]), thought)
    questions = ["How many of them lie?", "How many people lie?", "What is the number of liars?"]
    return _ask(" ".join(statements), questions, str(honest.count(False)), thought)


# --- true and not false ----------------------------------------------------------------------------------


def _expression(rng: Random, operators: int) -> str:
    if operators == 0:
        value = rng.choice(("true", "false"))
        return f"not {value}" if rng.random() < 0.3 else value
    left = rng.randrange(operators)
    text = f"({_expression(rng, left)} {rng.choice(('and', 'or'))} {_expression(rng, operators - 1 - left)})"
    return f"not {text}" if rng.random() < 0.15 else text


def _reduced(match: re.Match[str]) -> str:
    words = match.group().strip("()").split()
    if words[0] == "not":
        return "false" if words[1] == "true" else "true"
    values = (words[0] == "true", words[2] == "true")
    return str(all(values) if words[1] == "and" else any(values)).lower()


def _boolean(rng: Random, operators: int) -> Draw:
    text = _expression(rng, operators)
    text = text[1:-1] if text.startswith("(") else text
    steps = [text]
    while (found := _REDUCIBLE.sub(_reduced, steps[-1])) != steps[-1]:
        steps.append(found)
    prompts = [
        f"Is this true or false: {text}?",
        f"What is the value of {text}?",
        f"True or false: {text}",
        f"Calculate: {text}",
        f"Work out {text}.",
    ]
    return Draw(prompts, steps[-1], text, "; ".join(steps[1:]))


# --- Exercises: many questions about one text ------------------------------------------------------------


def _drill_claims(rng: Random) -> Draw:
    """Drill: is the claim made? Four coloured things, one or two at a time."""
    things, colours = rng.sample(_OBJECTS, 4), rng.sample(_COLOURS, 4)
    text = _coloured(things, colours)
    draws = []
    for _ in range(_DRILL_QUESTIONS):
        if rng.random() < 0.5:
            draws.append(_claim_of_one(rng, text, things, colours))
            continue
        pair = rng.sample(range(4), 2)
        draws.append(_claim_of_two(rng, text, [things[i] for i in pair], [colours[i] for i in pair]))
    return exercise(rng, text, draws)


def _drill_rules(rng: Random) -> Draw:
    """Drill: does the rule apply? Half of them do."""
    known, asked = rng.sample(_OBJECTS, 2), rng.sample(_OBJECTS, _DRILL_QUESTIONS)
    asked = [thing for thing in asked if thing not in known]
    colours = [rng.choice(_COLOURS) for _ in known]
    rules, answers = [], []
    for thing in asked:
        place, applies, then = rng.randrange(2), rng.random() < 0.5, rng.choice(_COLOURS)
        needed = colours[place] if applies else _another(rng, colours[place])
        rules.append(f"If the {known[place]} is {needed}, the {thing} is {then}.")
        answers.append(then if applies else "unknown")
    facts = _coloured(known, colours)
    text = " ".join((facts, *rules) if rng.random() < 0.5 else (*rules, facts))
    pairs = list(zip(asked, answers, strict=True))
    rng.shuffle(pairs)
    return exercise(rng, text, [_ask(text, _colour_of(thing), answer, "") for thing, answer in pairs])


def _drill_abilities(rng: Random) -> Draw:
    """Drill: who can do it? By each one's class."""
    skill, names = rng.choice(_ABILITIES), rng.sample(FIRST_NAMES, _DRILL_QUESTIONS)
    can = {kind: rng.random() < 0.5 for kind in rng.sample(_CLASSES, 3)}
    kinds = [rng.choice(list(can)) for _ in names]
    rules = [
        f"Every {kind} can {skill}." if able else f"No {kind} can {skill}." for kind, able in can.items()
    ]
    text = " ".join(
        rules + [f"{name} is {with_article(kind)}." for name, kind in zip(names, kinds, strict=True)]
    )
    draws = [
        _ask(text, _can(name, skill), _said(can[kind]), "") for name, kind in zip(names, kinds, strict=True)
    ]
    return exercise(rng, text, draws)


def _drill(rng: Random) -> Draw:
    return rng.choice((_drill_claims, _drill_rules, _drill_abilities))(rng)


_KINDS: dict[int, tuple[Callable[[Random], Draw], ...]] = {
    1: (_order_of_two, _truth_of_one, lambda rng: _ability(rng, 1)),
    2: (_order_of_three, _truth_of_two, lambda rng: _ability(rng, 2), lambda rng: _chain(rng, 1, 0)),
    3: (
        lambda rng: _order_end(rng, 4),
        lambda rng: _chain(rng, 2, 1),
        lambda rng: _classes(rng, 2, 1),
        lambda rng: _liars(rng, 3, shuffled=False),
        lambda rng: _boolean(rng, 2),
    ),
    4: (
        lambda rng: _order_rank(rng, rng.randint(4, 5)),
        lambda rng: _order_all(rng, 4),
        lambda rng: _chain(rng, 3, 2),
        lambda rng: _classes(rng, 3, 1),
        lambda rng: _liars(rng, 5, shuffled=False),
        lambda rng: _boolean(rng, 3),
    ),
    5: (
        lambda rng: _order_rank(rng, 6),
        lambda rng: _order_all(rng, rng.randint(5, 6)),
        lambda rng: _chain(rng, 4, 4),
        lambda rng: _classes(rng, 4, 2),
        lambda rng: _liars(rng, 6, shuffled=True),
        lambda rng: _boolean(rng, 4),
    ),
}


def _tier(number: int) -> Callable[[Random], Draw]:
    return lambda rng: rng.choice(_KINDS[number])(rng)


FAMILY = Family("logic", {number: _tier(number) for number in _KINDS}, drill=_drill)
