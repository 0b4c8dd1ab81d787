"""Instructions about form: separators, lists, capitals, lengths; by the user or by a system message."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from backend.pico.tasks.base import Context, Draw, Family, Instance, join_words
from backend.pico.tasks.steps import subtract_steps, walk_to
from backend.pico.tasks.words import CATEGORIES, NOUNS, with_article

_NUMBERS = ("zero", "one", "two", "three", "four", "five")
_SEPARATORS = {"commas": ", ", "semicolons": "; ", "slashes": " / ", "and": " and ", "lines": "\n"}
_LAYOUTS: dict[str, tuple[str, ...]] = {
    "commas": ("separated by commas", "with commas between them"),
    "semicolons": ("separated by semicolons", "with semicolons between them"),
    "slashes": ("separated by slashes", "with slashes between them"),
    "and": ('separated by the word "and"', "joined by the word and"),
    "lines": ("one per line", "on separate lines"),
    "numbered": ("as a numbered list", "as a list with numbers"),
    "dashes": ("as a list with dashes", "as a list of lines that begin with a dash"),
}
_CASES = {
    "plain": ("",),
    "upper": ("in capital letters", "in upper case"),
    "title": ("with capital first letters", "with a capital letter at the start of each word"),
}
_INLINE = ("commas", "semicolons", "slashes", "and")
_STARTS, _ENDS = ("Answer:", "Result:", "Sure!"), ("done", "over", "thanks")
_RULES = ("Answer {how}.", "Always answer {how}.", "Write every list {how}.", "The answer must be {how}.")


@dataclass(frozen=True, slots=True)
class _Form:
    """The required form of the items in an answer."""

    layout: str
    case: str = "plain"
    start: str = ""
    end: str = ""

    def cased(self, words: Sequence[str]) -> list[str]:
        """Return the words in the required case."""
        if self.case == "plain":
            return list(words)
        return [word.upper() if self.case == "upper" else word.capitalize() for word in words]

    def write(self, words: Sequence[str]) -> str:
        """Return the answer."""
        items = self.cased(words)
        if self.layout == "numbered":
            return "\n".join(f"{number}. {word}" for number, word in enumerate(items, 1))
        if self.layout == "dashes":
            return "\n".join(f"- {word}" for word in items)
        return " ".join(filter(None, (self.start, _SEPARATORS[self.layout].join(items), self.end)))

    def demand(self, rng: Random) -> str:
        """Return the user's instruction, such as "in capital letters and one per line"."""
        parts = [rng.choice(_CASES[self.case]), rng.choice(_LAYOUTS[self.layout])]
        parts += [f'beginning with "{self.start}"'] if self.start else []
        parts += [f'ending with "{self.end}"'] if self.end else []
        return " and ".join(filter(None, parts))

    def steps(self, words: Sequence[str]) -> list[str]:
        """Return the last steps: the words in their case, then the layout and what surrounds it."""
        cased = [] if self.case == "plain" else [f"{self.case}: {join_words(self.cased(words))}"]
        return [*cased, *filter(None, (self.layout, self.start, self.end))]


@dataclass(frozen=True, slots=True)
class _Items:
    """The items of an answer: templates of the request with a slot for the form, the items, their steps."""

    requests: Sequence[str]
    words: Sequence[str]
    steps: tuple[str, ...]
    key: str


def _plural(category: str) -> str:
    return "pieces of furniture" if category == "furniture" else f"{category}s"


def _given(words: Sequence[str]) -> _Items:
    text = join_words(words)
    requests = [
        f"Write these words{{how}}: {text}",
        f"Give me these words{{how}}: {text}",
        f"Repeat these words{{how}}: {text}",
        f"{text}: write these words{{how}}.",
    ]
    return _Items(requests, words, (), text)


def _open(rng: Random, count: int) -> _Items:
    category = rng.choice(list(CATEGORIES))
    number = rng.choice((str(count), _NUMBERS[count]))
    wanted = f"{number} {category if count == 1 and category != 'furniture' else _plural(category)}"
    requests = [f"{verb} {wanted}{{how}}." for verb in ("List", "Name", "Write", "Give me")]
    words = CATEGORIES[category][:count]
    return _Items(requests, words, (join_words(words),), f"open {category} {count}")


def _range(rng: Random, *, down: bool) -> _Items:
    first, count = rng.randint(1, 60), rng.randint(3, 7)
    words = [str(number) for number in range(first, first + count)]
    if down:
        words.reverse()
    ends = f"from {words[0]} {'down ' * down}to {words[-1]}"
    requests = [
        f"Write the numbers {ends}{{how}}.",
        f"Count {ends}{{how}}.",
        f"List all numbers {ends}{{how}}.",
    ]
    # Counts down the items left to 0: easier to learn than comparing a count with the target.
    each = [words[0], *(f"{before}{'-' if down else '+'}1={word}" for before, word in pairwise(words))]
    countdown = (f"{count - 1 - place}:{step}" for place, step in enumerate(each))
    steps = (f"{subtract_steps(first + count - 1, first)}; {'; '.join(countdown)}",)
    return _Items([*requests, f"Give me the numbers {ends}{{how}}."], words, steps, ends)


def _filter(rng: Random, hits: int, misses: int) -> _Items:
    category = rng.choice(list(CATEGORIES))
    good = rng.sample(CATEGORIES[category], hits)
    others = [word for name, words in CATEGORIES.items() if name != category for word in words]
    words = good + rng.sample(others, misses)
    rng.shuffle(words)
    found, text, plural = [word for word in words if word in good], join_words(words), _plural(category)
    requests = [
        f"Write only the {plural}{{how}}: {text}",
        f"Write the {plural} of this list{{how}}: {text}",
        f"Which of these are {plural}? Answer{{how}}: {text}",
        f"{text}: give me the {plural}{{how}}.",
    ]
    marked = " ".join(f"{word}{'+' if word in good else '-'}" for word in words)
    return _Items(requests, found, (f"{category}: {marked}", join_words(found)), f"{category} of {text}")


def _reversed(items: _Items) -> _Items:
    words = items.words[::-1]
    requests = [request.replace("{how}", " in reverse order{how}") for request in items.requests]
    return _Items(requests, words, (*items.steps, f"reverse: {join_words(words)}"), f"reverse {items.key}")


def _limited(items: _Items, count: int, *, last: bool = False) -> _Items:
    words = items.words[-count:] if last else items.words[:count]
    limit = f"only the {'last' if last else 'first'} {_NUMBERS[count]}"
    requests = [request.replace("{how}", f", {limit} of them,{{how}}") for request in items.requests]
    return _Items(
        requests, words, (*items.steps, f"{limit[9:]}: {join_words(words)}"), f"{limit} {items.key}"
    )


def _ask(rng: Random, items: _Items, form: _Form, *, system: float = 0.0) -> Draw:
    """Ask the question; with probability `system` the form is required by the system message."""
    demand, context = form.demand(rng), Context()
    if rng.random() < system:
        context, demand = Context(system=rng.choice(_RULES).format(how=demand)), ""
    prompts = [request.format(how=f" {demand}" if demand else "") for request in items.requests]
    prompts = [prompt.replace(",:", ":").replace(",.", ".").replace("? Answer:", ":") for prompt in prompts]
    key = " ".join(filter(None, (form.case, form.layout, form.start, form.end, items.key)))
    thought = "; ".join((*items.steps, *form.steps(items.words)))
    return Draw(prompts, form.write(items.words), key, thought, context)


def _choice(rng: Random, count: int, *, system: bool) -> Draw:
    """One word or a sentence about the one word of a category."""
    items = _filter(rng, 1, count - 1)
    category, _, text = items.key.partition(" of ")
    word, sentence = items.words[0], rng.random() < 0.5 and count > 2
    rule = "Answer in a full sentence" if sentence else "Answer in one word"
    question = f"which of these is {with_article(category)}: {text}?".replace("a furniture", "furniture")
    prompts = [f"{rule}: {question}", f"{question.capitalize()} {rule}.", f"{rule}. {question.capitalize()}"]
    context = Context(system=f"{rule}.") if system else Context()
    key = f"plain {'sentence' if sentence else 'word'} {items.key}"
    answer = f"The {category} is {word}." if sentence else word
    walk = walk_to(word, text.split(", "))
    thought = f"{walk}; {'sentence' if sentence else 'word'}"
    return Draw([question.capitalize()] if system else prompts, answer, key, thought, context)


def _yes_or_no(rng: Random) -> Draw:
    word, category = rng.choice(NOUNS), rng.choice(list(CATEGORIES))
    if rng.random() < 0.5:
        category = next(name for name, words in CATEGORIES.items() if word in words)
    rule, article = rng.choice(("yes or no", "true or false")), with_article
    found = word in CATEGORIES[category]
    claim = f"{article(word)} is {article(category)}".replace("a furniture", "furniture")
    prompts = [
        f"Answer with {rule}: {claim}.",
        f"{claim.capitalize()}. Answer with {rule}.",
        f"{rule.capitalize()}: {claim}?",
        f"{claim}, {rule}?",
    ]
    answer = rule.split()[0 if found else 2]
    actual = next(name for name, words in CATEGORIES.items() if word in words)
    thought = f"{word} {category}: {actual} {answer}"
    return Draw(prompts, answer, f"plain {rule} {word} {category}", thought)


def _tier1(rng: Random) -> Draw:
    kind = rng.randrange(4)
    if kind == 0:
        return _yes_or_no(rng)
    if kind == 1:
        return _choice(rng, 2, system=False)
    if kind == 2:
        return _ask(rng, _given(rng.sample(NOUNS, rng.randint(2, 3))), _Form(rng.choice(_INLINE)))
    return _ask(rng, _open(rng, rng.randint(2, 4)), _Form(rng.choice(_INLINE)))


def _tier2(rng: Random) -> Draw:
    if rng.random() < 0.25:
        return _choice(rng, 3, system=rng.random() < 0.5)
    items = (
        _given(rng.sample(NOUNS, rng.randint(2, 4))) if rng.random() < 0.6 else _open(rng, rng.randint(2, 5))
    )
    return _ask(rng, items, _Form(rng.choice(list(_LAYOUTS))), system=0.4)


def _tier3(rng: Random) -> Draw:
    layout, case = rng.choice(list(_LAYOUTS)), rng.choice(("upper", "title"))
    kind = rng.randrange(4)
    if kind == 0:
        return _ask(rng, _range(rng, down=False), _Form(layout), system=0.3)
    if kind == 1:
        return _ask(rng, _open(rng, rng.randint(2, 5)), _Form(layout, case), system=0.3)
    words = rng.sample(NOUNS, rng.randint(2, 4))
    if kind == 2:
        return _ask(rng, _given(words), _Form(layout, case), system=0.3)
    wrap = {"start": rng.choice(_STARTS)} if rng.random() < 0.5 else {"end": rng.choice(_ENDS)}
    return _ask(rng, _given(words), _Form(rng.choice(_INLINE), **wrap), system=0.3)


def _tier4(rng: Random) -> Draw:
    form = _Form(rng.choice(list(_LAYOUTS)), rng.choice(list(_CASES)))
    kind = rng.randrange(3)
    if kind == 0:
        return _ask(rng, _range(rng, down=True), _Form(form.layout), system=0.4)
    if kind == 1:
        items = _given(rng.sample(NOUNS, rng.randint(3, 6)))
        changed = _reversed(items) if rng.random() < 0.5 else _limited(items, 2, last=rng.random() < 0.5)
        return _ask(rng, changed, form, system=0.4)
    return _ask(rng, _filter(rng, rng.randint(2, 3), rng.randint(2, 3)), form, system=0.4)


def _tier5(rng: Random) -> Draw:
    form = _Form(rng.choice(_INLINE), rng.choice(("upper", "title")), rng.choice(("", *_STARTS)))
    if not form.start:
        form = _Form(rng.choice(list(_LAYOUTS)), form.case)
    items = _filter(rng, rng.randint(3, 4), rng.randint(3, 5))
    if rng.random() < 0.5:
        items = _limited(items, 2, last=rng.random() < 0.5)
    return _ask(rng, items if rng.random() < 0.3 else _reversed(items), form, system=0.5)


def _right_items(instance: Instance, text: str) -> bool:
    """Return whether other items of an open list have the required form."""
    case, layout, _, category, count = instance.key.split()
    words = list(dict.fromkeys(re.findall(r"[a-z]+", text.lower())))
    items = [word for word in words if word in CATEGORIES[category]]
    return len(items) == int(count) and _Form(layout, case).write(items) == text


def grade(instance: Instance, text: str) -> bool:
    """Return whether the answer has the exact form; capitals count only if required."""
    found, expected = (
        "\n".join(line.rstrip() for line in part.strip().rstrip(".").rstrip().splitlines())
        for part in (text, instance.answer)
    )
    if instance.key.startswith("plain"):
        found, expected = found.lower(), expected.lower()
    if re.fullmatch(r"\w+ \w+ open \w+ \d", instance.key) and _right_items(instance, found):
        return True
    return found == expected


FAMILY = Family("instructions", {1: _tier1, 2: _tier2, 3: _tier3, 4: _tier4, 5: _tier5}, grader=grade)
