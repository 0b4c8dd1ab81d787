"""References to numbers of earlier turns: results, other operands, running counts.

Earlier answers are training targets too, so their questions must be of the training split of their family.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from backend.pico.tasks.base import Context, Draw, Instance, Turn, split_of
from backend.pico.tasks.steps import add_steps, extreme_steps, multiply_steps, subtract_steps, sum_steps
from backend.pico.tasks.words import ITEMS, person

_MORE = (
    "I buy {n} more {items}.",
    "I find {n} {items}.",
    "{name} gives me {n} {items}.",
    "I get {n} new {items}.",
)
_LESS = (
    "I sell {n} {items}.",
    "I lose {n} {items}.",
    "I give {n} {items} to {name}.",
    "I give away {n} {items}.",
)
Exchange = tuple[str, str]


def talk(*exchanges: Exchange) -> Context:
    """Return a context of earlier questions with their answers."""
    turns = [turn for asked, told in exchanges for turn in (Turn("user", asked), Turn("assistant", told))]
    return Context(turns=tuple(turns))


def is_trained(family: str, key: str) -> bool:
    """Return whether an earlier question may be shown with its answer."""
    return split_of(Instance(family, 1, "", "", key)) == "train"


def _trained_pair(rng: Random, first: int, second: int) -> tuple[int, int]:
    """Return two different operands of a sum, from 1 up to the limits, in the training split."""
    while True:
        left, right = rng.randint(1, first), rng.randint(1, second)
        if left != right and is_trained("arithmetic", f"{left}+{right}"):
            return left, right


def _sum(rng: Random, left: int, right: int) -> Exchange:
    asked = rng.choice(("What is {} + {}?", "Calculate {} + {}.", "{} + {}", "{} + {} = ?", "Add {} and {}."))
    return asked.format(left, right), str(left + right)


@dataclass(frozen=True, slots=True)
class _Result:
    """An earlier exchange about a sum or difference, its value, and its key without the phrasing."""

    exchange: Exchange
    value: int
    name: str


def _result(rng: Random, limit: int) -> _Result:
    left, right = _trained_pair(rng, limit, limit)
    if rng.random() < 0.5:
        return _Result(_sum(rng, left, right), left + right, f"{left}+{right}")
    left, right = max(left, right), min(left, right)
    if not is_trained("arithmetic", f"{left}-{right}"):
        return _result(rng, limit)
    asked = rng.choice(("What is {0} - {1}?", "Calculate {0} - {1}.", "{0} - {1}", "Subtract {1} from {0}."))
    return _Result((asked.format(left, right), str(left - right)), left - right, f"{left}-{right}")


def other_parity(rng: Random) -> Draw:
    """ "And 8?" after "Is 7 even or odd?"."""
    first, second = rng.randrange(100), rng.randrange(100)
    if not is_trained("number_facts", f"parity {first}"):
        return other_parity(rng)
    words = ("Even", "Odd")
    asked = rng.choice((f"Is {first} even or odd?", f"{first}: even or odd?"))
    prompts = [f"And {second}?", f"And for {second}?", f"What about {second}?", f"How about {second}?"]
    answer = words[second % 2]
    return Draw(prompts, answer, f"{first} {second}", f"{second} {answer}", talk((asked, words[first % 2])))


def other_extreme(rng: Random) -> Draw:
    """ "And the smaller one?" after "Which is larger, 4 or 9?"."""
    low, high = sorted(rng.sample(range(100), 2))
    pair = (low, high) if rng.random() < 0.5 else (high, low)
    asked, told, wanted, answer = (
        ("larger", high, "smaller", low) if rng.random() < 0.5 else ("smaller", low, "larger", high)
    )
    if not is_trained("comparison", f"{pair[0]} {pair[1]} {'max' if asked == 'larger' else 'min'}"):
        return other_extreme(rng)
    context = talk((f"Which is {asked}, {pair[0]} or {pair[1]}?", str(told)))
    prompts = [f"And the {wanted} one?", f"And which is {wanted}?", f"Which is the {wanted} one?"]
    prompts.append(f"And the {wanted} number?")
    return Draw(prompts, str(answer), f"{wanted} of {pair}", f"{pair[0]}, {pair[1]}: {answer}", context)


def double_that(rng: Random, limit: int) -> Draw:
    """ "And twice that?" after a sum."""
    left, right = _trained_pair(rng, limit, limit)
    total = left + right
    prompts = ["And twice that?", "Double it.", "What is that times two?", "Multiply that by 2.", "Times 2?"]
    return Draw(
        prompts, str(2 * total), f"2*({left}+{right})", add_steps(total, total), talk(_sum(rng, left, right))
    )


def change_that(rng: Random, limit: int, change: int) -> Draw:
    """ "Add 5 to that.", or "Minus 5?", after a result."""
    while True:
        found = _result(rng, limit)
        value = found.value
        step = rng.randint(2, change)
        if rng.random() < 0.5:
            prompts = [f"Add {step} to that.", f"And {step} more?", f"Plus {step}?", f"Now add {step}."]
            return Draw(
                prompts,
                str(value + step),
                f"({found.name})+{step}",
                add_steps(value, step),
                talk(found.exchange),
            )
        if step <= value:
            prompts = [f"Subtract {step} from that.", f"And {step} less?", f"Minus {step}?"]
            prompts.append(f"Now subtract {step}.")
            return Draw(
                prompts,
                str(value - step),
                f"({found.name})-{step}",
                subtract_steps(value, step),
                talk(found.exchange),
            )


def multiply_that(rng: Random, limit: int) -> Draw:
    """ "Multiply that by 6." after a result."""
    found = _result(rng, limit)
    value = found.value
    factor = rng.randint(3, 9)
    prompts = [f"Multiply that by {factor}.", f"Times {factor}?", f"And {factor} times that?"]
    prompts.append(f"What is that times {factor}?")
    return Draw(
        prompts,
        str(value * factor),
        f"({found.name})*{factor}",
        multiply_steps(value, factor),
        talk(found.exchange),
    )


def other_operand(rng: Random, limit: int, other: int) -> Draw:
    """ "And with 9 instead of 7?" after "What is 12 + 7?"."""
    left, right = _trained_pair(rng, limit, other)
    new = rng.choice([number for number in range(1, other + 1) if number != right])
    prompts = [
        f"And with {new} instead of {right}?",
        f"And for {new} instead of {right}?",
        f"Use {new} instead of {right}.",
    ]
    prompts.append(f"What if it is {new} instead of {right}?")
    key = f"{left}+{right}>{new}"
    return Draw(prompts, str(left + new), key, add_steps(left, new), talk(_sum(rng, left, right)))


def then_double(rng: Random, limit: int) -> Draw:
    """Two operations on the last of two results."""
    first = _result(rng, limit)
    value = first.value
    step, factor = rng.randint(2, 40), rng.randint(2, 5)
    second = (rng.choice((f"Add {step} to that.", f"Plus {step}?")), str(value + step))
    more = rng.randint(2, 40)
    total = value + step + more
    prompts = [f"Add {more} and multiply by {factor}.", f"Now add {more} and then multiply by {factor}."]
    prompts += [f"Plus {more}, then times {factor}?", f"And {more} more, times {factor}?"]
    steps = f"{add_steps(value + step, more)};{multiply_steps(total, factor)}"
    key = f"(({first.name})+{step}+{more})*{factor}"
    return Draw(prompts, str(total * factor), key, steps, talk(first.exchange, second))


def between_results(rng: Random, limit: int) -> Draw:
    """The sum or the difference of two earlier results."""
    while True:
        first, second = _result(rng, limit), _result(rng, limit)
        one, two, key = first.value, second.value, f"{first.name} {second.name}"
        context = talk(first.exchange, second.exchange)
        if rng.random() < 0.5:
            prompts = ["Add both results.", "What is the sum of the two results?", "Add your two answers."]
            prompts.append("And both results together?")
            return Draw(prompts, str(one + two), f"sum {key}", add_steps(one, two), context)
        if one != two:
            high, low = max(one, two), min(one, two)
            prompts = [
                "Subtract the smaller result from the larger one.",
                "How far apart are the two results?",
            ]
            prompts += ["What is the difference of the two results?", "And the difference of your answers?"]
            steps = subtract_steps(high, low)
            return Draw(prompts, str(high - low), f"difference {key}", steps, context)


def all_results(rng: Random, limit: int, count: int) -> Draw:
    """The sum of all earlier results, or the largest minus the smallest."""
    found = [_result(rng, limit) for _ in range(count)]
    values = [result.value for result in found]
    context = talk(*(result.exchange for result in found))
    key = " ".join(result.name for result in found)
    listed = ",".join(map(str, values))
    if rng.random() < 0.5:
        prompts = [
            "What is the sum of all results so far?",
            "Add all your answers.",
            "Add up all the results.",
        ]
        prompts.append("What do all results add up to?")
        return Draw(prompts, str(sum(values)), f"sum {key}", f"{listed};{sum_steps(values)}", context)
    prompts = [
        "What is the largest result minus the smallest?",
        "Subtract your smallest answer from the largest.",
    ]
    prompts += [
        "How far apart are the largest and the smallest result?",
        "And the largest minus the smallest?",
    ]
    high, low = max(values), min(values)
    largest, smallest = extreme_steps(values, largest=True), extreme_steps(values, largest=False)
    steps = f"{listed};{largest};{smallest};{subtract_steps(high, low)}"
    return Draw(prompts, str(high - low), f"span {key}", steps, context)


def running_count(rng: Random, limit: int, updates: int, *, others: bool = False) -> Draw:
    """Count things after some came and went; `others` are mentioned but not asked about."""
    wanted, other = rng.sample(ITEMS, 2)
    counts = {wanted: rng.randint(5, limit), other: rng.randint(5, limit)}
    start = f"I have {counts[wanted]} {wanted}" + (f" and {counts[other]} {other}." if others else ".")
    told, steps, events, key = [start], [f"{wanted} {counts[wanted]}"], 0, f"{wanted} of {counts}"
    while events < updates:
        distract = others and len(told) - events < 3 and rng.random() < 0.35
        item = other if distract else wanted
        more, amount = rng.random() < 0.5, rng.randint(2, limit)
        if not more and amount > counts[item]:
            continue
        told.append(rng.choice(_MORE if more else _LESS).format(n=amount, items=item, name=person(rng)))
        if item != wanted:
            steps.append(f"{other} {amount}")  # included, so that no message is skipped
        else:
            steps.append(add_steps(counts[item], amount) if more else subtract_steps(counts[item], amount))
            events += 1
        counts[item] += amount if more else -amount
        key += f" {'+' if more else '-'}{amount} {item}"
    prompts = [f"How many {wanted} do I have now?", f"How many {wanted} do I have?", f"Count my {wanted}."]
    prompts.append(f"And how many {wanted} are there now?")
    context = talk(*((line, "OK.") for line in told))
    return Draw(prompts, str(counts[wanted]), key, ";".join(steps), context)
