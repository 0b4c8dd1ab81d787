"""Tool use: call an offered tool, answer from its result, or answer without it.

The key is the question alone: the same question with other tools, or with a result, stays in its split.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from backend.pico.tasks import arithmetic, out_of_scope, smalltalk
from backend.pico.tasks.base import Context, Draw, Family, Instance, Turn, grade_exact
from backend.pico.tasks.tool_calls import parse_calls
from backend.pico.tasks.tool_skills import (
    CALCULATOR,
    HOME,
    PRICE,
    SIMPLE,
    SKILLS,
    STOCK,
    TIME,
    WEATHER,
    Offer,
    Skill,
    Values,
    items,
    offers,
    seen,
)
from backend.pico.tasks.words import city, person

NOT_FOUND = "I could not find that."
_ERRORS = ("error: not found", "error: no result", "not found", "null")
_NO_TOOL = "no tool"


def _context(rng: Random, offered: Sequence[Offer], after: Sequence[Turn] = ()) -> Context:
    tools = [each.tool for each in offered]
    rng.shuffle(tools)
    return Context(tools=tuple(tools), after=tuple(after))


def _called(call: str, *results: str) -> list[Turn]:
    return [Turn("assistant", call), *(Turn("tool", result) for result in results)]


def _call(rng: Random, offered: Sequence[Offer], values: Values, prompts: Sequence[str] = ()) -> Draw:
    """Ask for what the first tool does: the answer is its call."""
    first, context = offered[0], _context(rng, offered)
    return Draw(
        prompts or first.skill.ask(values),
        first.call(values),
        first.skill.key(values),
        first.steps(values, seen(offered, context.tools)),
        context,
    )


def _result(rng: Random, offered: Sequence[Offer], shown: str, answer: str, values: Values) -> Draw:
    """The first tool was called and returned `shown`, which has the answer."""
    first = offered[0]
    context = _context(rng, offered, _called(first.call(values), shown))
    thought = f"{first.skill.kind}: {answer}"
    return Draw(first.skill.ask(values), answer, first.skill.key(values), thought, context)


def _plain_result(rng: Random, offered: Sequence[Offer]) -> Draw:
    values = offered[0].skill.draw(rng)
    result = offered[0].skill.result(rng, values)
    return _result(rng, offered, result, result, values)


def _tier1(rng: Random) -> Draw:
    offered = offers(rng, [rng.choice(SIMPLE)], 1)
    if rng.random() < 0.3:
        return _plain_result(rng, offered)
    return _call(rng, offered, offered[0].skill.draw(rng))


def _not_needed(rng: Random, count: int) -> Draw:
    """Small talk, or a small sum without a calculator among the tools."""
    family = rng.choice((smalltalk.FAMILY, arithmetic.FAMILY))
    inner = family.generate(rng, 1)
    numbers = re.fullmatch(r"(\d+)([-+*])(\d+)", inner.key)
    key = CALCULATOR.key((" ".join(numbers.groups()),)) if numbers else f"none:{inner.key}"
    offered = offers(rng, [CALCULATOR], count + 1)[1:]
    return Draw([inner.prompt], inner.answer, key, f"{_NO_TOOL};{inner.thought}", _context(rng, offered))


def _tier2(rng: Random) -> Draw:
    count, share = rng.randint(2, 3), rng.random()
    if share < 0.2:
        return _not_needed(rng, count)
    offered = offers(rng, [rng.choice(SKILLS)], count)
    if share < 0.4:
        return _plain_result(rng, offered)
    return _call(rng, offered, offered[0].skill.draw(rng))


def _missing(rng: Random, count: int) -> Draw:
    """None of the tools can do what is asked."""
    skill = rng.choice([skill for skill in SKILLS if skill is not CALCULATOR])
    values = skill.draw(rng)
    offered = offers(rng, [skill], count + 1)[1:]
    context = _context(rng, offered)
    thought = f"{skill.kind}: {'; '.join([*seen(offered, context.tools), _NO_TOOL])}"
    return Draw(skill.ask(values), out_of_scope.ANSWER, skill.key(values), thought, context)


def _structured(rng: Random, offered: Sequence[Offer]) -> Draw:
    """The result is a JSON object, or an error."""
    skill = offered[0].skill
    values = skill.draw(rng)
    result = skill.result(rng, values)
    if rng.random() < 0.3:
        return _result(rng, offered, rng.choice(_ERRORS), NOT_FOUND, values)
    fields = [("input", " ".join(map(str, values))), ("id", rng.randint(100, 9999)), (skill.kind, result)]
    rng.shuffle(fields)
    return _result(rng, offered, json.dumps(dict(fields), ensure_ascii=False), result, values)


def _story(rng: Random, count: int) -> Draw:
    """The expression must be found in words."""
    left, right, what = rng.randint(11, 999), rng.randint(2, 10), items(rng)
    operator = rng.choice("+-*")
    prompts = {
        "*": (
            f"I have {left} boxes with {right} {what} each. How many {what} is that?",
            f"What is {left} times {right}?",
            f"{left} people buy {right} {what} each. How many {what} do they buy?",
            f"Multiply {left} by {right}.",
        ),
        "+": (
            f"I have {left} {what} and get {right} more. How many {what} do I have?",
            f"What is {left} plus {right}?",
            f"There are {left} {what} here and {right} there. How many {what} are there?",
            f"Add {right} to {left}.",
        ),
        "-": (
            f"I have {left} {what} and lose {right}. How many {what} are left?",
            f"What is {left} minus {right}?",
            f"There were {left} {what} and {right} were sold. How many {what} remain?",
            f"Subtract {right} from {left}.",
        ),
    }[operator]
    return _call(rng, offers(rng, [CALCULATOR], count), (f"{left} {operator} {right}",), prompts)


def _tier3(rng: Random) -> Draw:
    count, share = rng.randint(3, 4), rng.random()
    if share < 0.15:
        return _missing(rng, count)
    if share < 0.35:
        return _story(rng, count)
    offered = offers(rng, [rng.choice(SKILLS)], count, renamed=rng.random() < 0.7)
    if share < 0.55:
        return _structured(rng, offered)
    return _call(rng, offered, offered[0].skill.draw(rng))


def _together(rng: Random, first: Offer, second: Offer, values: Values, others: Values) -> list[str]:
    """Return two questions joined into one."""
    asked, also = (rng.choice(each.skill.ask(of)) for each, of in ((first, values), (second, others)))
    lowered = also[0].lower() + also[1:]
    return [
        f"{asked} {also}",
        f"{asked} And {lowered}",
        f"{asked} Also: {lowered}",
        f"Two questions: {asked} {also}",
    ]


def _two(rng: Random, count: int) -> Draw:
    """Two calls in one answer, of one tool or of two, or the two results in one line."""
    needed = rng.sample(SKILLS, rng.randint(1, 2))
    offered = offers(rng, needed, count, renamed=rng.random() < 0.5)
    first, second = offered[0], offered[len(needed) - 1]
    values, others = first.skill.draw(rng), second.skill.draw(rng)
    prompts = _together(rng, first, second, values, others)
    calls = f"{first.call(values)}\n{second.call(others)}"
    key = f"{first.skill.key(values)} {second.skill.key(others)}"
    if rng.random() < 0.25:
        results = first.skill.result(rng, values), second.skill.result(rng, others)
        answer = "; ".join(results)
        return Draw(prompts, answer, key, answer, _context(rng, offered, _called(calls, *results)))
    context = _context(rng, offered)
    kinds = seen(offered, context.tools)
    also = second.arguments(others) if second is first else second.steps(others, kinds)
    thought = f"{first.steps(values, kinds)} | {also}"
    return Draw(prompts, calls, key, thought, context)


_COMPARISONS: tuple[tuple[Skill, tuple[str, ...]], ...] = (
    (
        PRICE,
        (
            "Which cost more, {0} or {1}?",
            "What has the higher price, {0} or {1}?",
            "Of {0} and {1}, which cost more?",
            "Are {0} or {1} more expensive?",
        ),
    ),
    (
        WEATHER,
        (
            "Is it warmer in {0} or in {1}?",
            "Which city is warmer, {0} or {1}?",
            "Where is it warmer, in {0} or in {1}?",
            "Of {0} and {1}, which is warmer?",
        ),
    ),
)


def _number(text: str) -> int:
    return int(re.sub(r"\D", "", text))


def _compare(rng: Random, count: int) -> Draw:
    """Two calls of one tool, then the one with the larger result."""
    skill, questions = rng.choice(_COMPARISONS)
    offered = offers(rng, [skill], count, renamed=rng.random() < 0.5)
    tool = offered[0]
    names = [skill.draw(rng), skill.draw(rng)]
    results = [skill.result(rng, name) for name in names]
    while names[0] == names[1] or _number(results[0]) == _number(results[1]):
        names, results = [names[0], skill.draw(rng)], [results[0], skill.result(rng, names[1])]
    prompts = [question.format(names[0][0], names[1][0]) for question in questions]
    key = f"larger {skill.key((names[0][0], names[1][0]))}"
    calls = "\n".join(tool.call(name) for name in names)
    if rng.random() < 0.5:
        context = _context(rng, offered)
        steps = f"{tool.steps(names[0], seen(offered, context.tools))} | {tool.arguments(names[1])}"
        return Draw(prompts, calls, key, steps, context)
    left, right = map(_number, results)
    answer = str(names[0][0] if left > right else names[1][0])
    listed = ";".join(f"{name[0]} {value}" for name, value in zip(names, (left, right), strict=True))
    thought = f"{listed};max {answer}"
    return Draw(prompts, answer, key, thought, _context(rng, offered, _called(calls, *results)))


def _tier4(rng: Random) -> Draw:
    count = rng.randint(3, 4)
    return _compare(rng, count) if rng.random() < 0.4 else _two(rng, count)


_Chain = tuple[list[str], tuple[Skill, Skill], Values, Callable[[str], str]]


def _cost(rng: Random) -> _Chain:
    number, what = rng.randint(2, 99), items(rng)
    prompts = [
        f"How much do {number} {what} cost?",
        f"What is the price of {number} {what}?",
        f"I buy {number} {what}. What do I pay?",
        f"What do I pay for {number} {what}?",
    ]
    return prompts, (PRICE, CALCULATOR), (what,), lambda found: f"{_number(found)} * {number}"


def _left(rng: Random) -> _Chain:
    number, what = rng.randint(2, 99), items(rng)
    prompts = [
        f"How many {what} are left in stock when {number} more come?",
        f"How many {what} are in stock after {number} more come?",
        f"We buy {number} {what}. How many are in stock then?",
        f"What is the stock of {what} plus {number}?",
    ]
    return prompts, (STOCK, CALCULATOR), (what,), lambda found: f"{found} + {number}"


def _at_home(rng: Random) -> _Chain:
    who, skill = person(rng), rng.choice((WEATHER, TIME))
    prompts = [
        f"What is the {skill.kind} where {who} lives?",
        f"Tell me the {skill.kind} in the city of {who}.",
        f"What is the {skill.kind} at the home of {who}?",
        f"{who} is at home. What is the {skill.kind} there?",
    ]
    return prompts, (HOME, skill), (who,), lambda found: found


def _tier5(rng: Random) -> Draw:
    """Two calls, the second with the result of the first; the answer is one of them, or the last result."""
    prompts, needed, values, second_value = rng.choice((_cost, _left, _at_home))(rng)
    first, second, *_ = offered = offers(rng, needed, rng.randint(3, 5), renamed=rng.random() < 0.5)
    state, key = rng.randrange(3), f"chain {re.sub(r'[^0-9]', '', prompts[0])} {first.skill.key(values)}"
    key += f" {second.skill.kind}"
    found = city(rng) if first.skill is HOME else first.skill.result(rng, values)
    then: Values = (second_value(found),)
    after: list[Turn] = []
    context = _context(rng, offered)
    kinds = seen(offered, context.tools)
    answer, thought = first.call(values), first.steps(values, kinds)
    plan = f"{first.skill.kind} then {second.skill.kind}"
    if state > 0:
        after = _called(answer, found)
        answer, thought = second.call(then), f"{plan}: {found};{second.steps(then, kinds)}"
    if state > 1:
        result = second.skill.result(rng, then)
        after += _called(answer, result)
        answer, thought = result, f"{plan}: {result}"
    return Draw(prompts, answer, key, thought, replace(context, after=tuple(after)))


def grade(instance: Instance, text: str) -> bool:
    """Return whether the text has the same calls in the same order, as JSON; else the same text."""
    expected = parse_calls(instance.answer)
    if expected is None:
        return grade_exact(instance, text)
    return parse_calls(text.strip().rstrip(".")) == expected


FAMILY = Family("tools", {1: _tier1, 2: _tier2, 3: _tier3, 4: _tier4, 5: _tier5}, grade)
