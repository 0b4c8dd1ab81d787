"""Questions about a small table in the prompt: look up, compare, count, add up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from backend.pico.tasks.base import Draw, Family, Instance, exercise, grade_exact, join_words, normalise
from backend.pico.tasks.steps import add_steps, count_steps, sign_of, subtract_steps, sum_steps
from backend.pico.tasks.words import CATEGORIES, CITIES, FIRST_NAMES, ITEMS, JOBS

_WORDS = {"city": CITIES, "job": JOBS, "colour": CATEGORIES["colour"], "animal": CATEGORIES["animal"]}
_NUMBERS = ("age", *ITEMS)
_DRILL_QUESTIONS = 6


@dataclass(frozen=True, slots=True)
class _Table:
    """Rows about people: a name, then one cell per further column."""

    header: list[str]
    rows: list[list[str]]
    is_markdown: bool

    @property
    def text(self) -> str:
        """The table as printed in the prompt."""
        rules = [["---"] * len(self.header)] if self.is_markdown else []
        return "\n".join(self.line(row) for row in (self.header, *rules, *self.rows))

    def line(self, row: list[str]) -> str:
        """Return a row as printed: a space before every cell, so that a name is the same token everywhere."""
        return f"| {' | '.join(row)} |" if self.is_markdown else f"- {', '.join(row)}"

    def column(self, name: str) -> list[str]:
        """Return all cells of a column."""
        return [row[self.header.index(name)] for row in self.rows]

    def numbers(self, name: str) -> list[int]:
        """Return all cells of a column as numbers."""
        return [int(cell) for cell in self.column(name)]


def _table(rng: Random, rows: int, *, numeric: int, words: int, largest: int = 99) -> _Table:
    """Draw a table with these numbers of number and word columns; the numbers of a column are distinct."""
    columns: dict[str, list[str]] = {}
    for number in rng.sample(_NUMBERS, numeric):
        low = 10 if largest > 10 else 1
        columns[number] = [str(value) for value in rng.sample(range(low, largest + 1), rows)]
    for word in rng.sample(list(_WORDS), words):
        columns[word] = [rng.choice(_WORDS[word]) for _ in range(rows)]
    others = list(columns)
    rng.shuffle(others)
    names = rng.sample(FIRST_NAMES, rows)
    cells = [[name, *(columns[other][place] for other in others)] for place, name in enumerate(names)]
    header = ["name", *others]
    return _Table(header, cells, rng.random() < 0.6)


def _ask(table: _Table, questions: list[str], answer: str, thought: str) -> Draw:
    """Put the table before or after the question; the key is the table alone."""
    prompts = [f"{table.text}\n{question}" for question in questions]
    prompts += [f"{questions[0]}\n{table.text}", f"Table:\n{table.text}\nQuestion: {questions[-1]}"]
    return Draw(prompts, answer, table.text, thought)


def _listed(table: _Table, rows: list[list[str]]) -> str:
    """Return the header and these rows as printed: copying is the most reliable way to find a cell."""
    return "; ".join(table.line(row) for row in (table.header, *rows))


# --- Look up ---------------------------------------------------------------------------------------------


def _cell(rng: Random, table: _Table, *, header: bool) -> Draw:
    """The cell of a named row and column."""
    row, asked = rng.choice(table.rows), rng.choice(table.header[1:])
    name, answer = row[0], row[table.header.index(asked)]
    if asked in ITEMS:
        questions = [f"How many {asked} does {name} have?", f"What is the number of {asked} of {name}?"]
    else:
        questions = [f"What is the {asked} of {name}?", f"Which {asked} does {name} have?"]
    questions += [f"Find the {asked} of {name}.", f"{name}: {asked}?"]
    # Header and row are walked in parallel to the end: to recognise where to stop is harder to learn than to
    # repeat what followed a word.
    pairs = [f"{head} {cell}" for head, cell in zip(table.header, row, strict=True)]
    steps = f"{_listed(table, [row])}; {'; '.join(pairs)}; {asked} {answer}" if header else table.line(row)
    # With the column's name, as in "Rosa: 60": related tokens are found together.
    return _ask(table, questions, f"{name}: {answer}", steps)


def _row(rng: Random, table: _Table) -> Draw:
    """The name in the row of a number."""
    asked = rng.choice([header for header in table.header[1:] if header in _NUMBERS])
    row = rng.choice(table.rows)
    value = row[table.header.index(asked)]
    what = f"{value} {asked}" if asked in ITEMS else f"the {asked} {value}"
    questions = [f"Who has {what}?", f"Which person has {what}?", f"Name the person with {what}."]
    # Down the column to the number: the last name is the answer.
    numbers = table.column(asked)
    seen = [f"{each[0]} {number}" for each, number in zip(table.rows, numbers, strict=True)]
    return _ask(table, questions, row[0], f"{asked} {value}? {'; '.join(seen[: table.rows.index(row) + 1])}")


def _rows(rng: Random, table: _Table, count: int) -> Draw:
    """The rows of several people as printed, in the order of the question."""
    rows = rng.sample(table.rows, count)
    names = join_words([row[0] for row in rows])
    questions = [
        f"Show the rows of {names}.",
        f"Give me the rows of {names}.",
        f"Which rows belong to {names}?",
        f"Copy the rows of {names}.",
    ]
    return _ask(table, questions, "\n".join(table.line(row) for row in rows), f"rows {names}")


# --- Compare ---------------------------------------------------------------------------------------------


def _number_header(rng: Random, table: _Table) -> str:
    return rng.choice([header for header in table.header if header in _NUMBERS])


def _degree(header: str) -> tuple[str, str, str, str]:
    """Return the comparative of more and of less, and the superlatives, for a column."""
    if header == "age":
        return "is older", "is younger", "is the oldest", "is the youngest"
    return (f"has more {header}", f"has fewer {header}", f"has the most {header}", f"has the fewest {header}")


def _compare(rng: Random, table: _Table) -> Draw:
    header = _number_header(rng, table)
    place = table.header.index(header)
    pair = rng.sample(table.rows, 2)
    values = [int(row[place]) for row in pair]
    which = rng.randrange(2)
    more = _degree(header)[which]
    best = pair[values.index((max, min)[which](values))][0]
    first, second = pair[0][0], pair[1][0]
    questions = [
        f"Who {more}, {first} or {second}?",
        f"Which one {more}: {first} or {second}?",
        f"{first} or {second}: who {more}?",
        f"Which of {first} and {second} {more}?",
    ]
    sought = ("max", "min")[which]
    signs = f"{values[0]},{values[1]}:{sign_of(*values)};{sought} {(max, min)[which](values)}"
    steps = f"{_listed(table, pair)}; {first} {values[0]}, {second} {values[1]}; {signs} {best}"
    return _ask(table, questions, best, steps)


def _best(table: _Table, header: str, which: int) -> tuple[list[str], str]:
    """Return the row with the largest (0) or smallest (1) number, and the steps with the best so far."""
    values, pick = table.numbers(header), (max, min)[which]
    steps = []
    for place, (row, value) in enumerate(zip(table.rows, values, strict=True)):
        best = table.rows[values.index(pick(values[: place + 1]))]
        steps.append(f"{row[0]} {value}: {best[0]} {values[table.rows.index(best)]}")
    return best, f"{header} {('max', 'min')[which]}; {'; '.join(steps)}; {best[0]}"


def _extreme(rng: Random, table: _Table) -> Draw:
    header, which = _number_header(rng, table), rng.randrange(2)
    best, steps = _best(table, header, which)
    most = _degree(header)[2 + which]
    questions = [
        f"Who {most}?",
        f"Which person {most}?",
        f"Name the person who {most}.",
        f"Find out who {most}.",
    ]
    return _ask(table, questions, best[0], steps)


def _extreme_other(rng: Random, table: _Table) -> Draw:
    """Another cell of the row that a maximum or minimum selects."""
    header, which = _number_header(rng, table), rng.randrange(2)
    asked = rng.choice([name for name in table.header[1:] if name in _WORDS])
    best, steps = _best(table, header, which)
    most, answer = _degree(header)[2 + which], best[table.header.index(asked)]
    questions = [
        f"What is the {asked} of the person who {most}?",
        f"Which {asked} does the person have who {most}?",
        f"Name the {asked} of the person who {most}.",
        f"Find the {asked} of the person who {most}.",
    ]
    return _ask(table, questions, answer, f"{steps}; {_listed(table, [best])}; {answer}")


# --- Count and add up ------------------------------------------------------------------------------------


def _count(rng: Random, table: _Table) -> Draw:
    """How many numbers of a column are above or below a limit."""
    header = _number_header(rng, table)
    values = table.numbers(header)
    limit = rng.choice([value + 1 for value in values])
    above = rng.random() < 0.5
    hits = [value > limit if above else value < limit for value in values]
    what = f"{'more' if above else 'less'} than {limit}"
    rule = f"an age of {what}" if header == "age" else f"{what} {header}"
    questions = [
        f"How many people have {rule}?",
        f"Count the people with {rule}.",
        f"How many of them have {rule}?",
        f"What is the number of people with {rule}?",
    ]
    compared = [f"{value} {sign_of(value, limit)}" for value in values]
    steps = f"{header} {'>' if above else '<'} {limit}; {count_steps(compared, hits, '; ')}"
    return _ask(table, questions, str(sum(hits)), steps)


def _total(header: str) -> str:
    return "sum of the ages" if header == "age" else f"total number of {header}"


def _sum(rng: Random, table: _Table) -> Draw:
    header = _number_header(rng, table)
    values = table.numbers(header)
    total = _total(header)
    questions = [
        f"What is the {total}?",
        f"Calculate the {total}.",
        f"Find the {total} in the table.",
        f"Add up the column {header}.",
    ]
    listed = " ".join(str(value) for value in values)
    return _ask(table, questions, str(sum(values)), f"{header} {listed}; {sum_steps(values)}")


def _two(rng: Random, table: _Table) -> Draw:
    """The sum or difference of two cells of a column, the larger one first in question and steps."""
    header = _number_header(rng, table)
    place = table.header.index(header)
    rows = rng.sample(table.rows, 2)
    if int(rows[0][place]) < int(rows[1][place]):
        rows.reverse()
    (first, second), (high, low) = [row[0] for row in rows], [int(row[place]) for row in rows]
    start = f"{_listed(table, rows)}; "
    if rng.random() < 0.5:
        what = _total(header)
        questions = [
            f"What is the {what} of {first} and {second}?",
            f"Calculate the {what} of {first} and {second}.",
            f"{first} and {second}: what is the {what}?",
            f"Find the {what} of {first} and {second}.",
        ]
        return _ask(table, questions, str(high + low), start + sum_steps([high, low]))
    if header == "age":
        questions = [f"How many years is {first} older than {second}?"]
    else:
        questions = [f"How many {header} more does {first} have than {second}?"]
    questions += [
        f"What is the difference of {header} between {first} and {second}?",
        f"Calculate the difference of {header} between {first} and {second}.",
    ]
    return _ask(table, questions, str(high - low), start + subtract_steps(high, low))


def _range(rng: Random, table: _Table) -> Draw:
    """The difference between the largest and the smallest number of a column."""
    header = _number_header(rng, table)
    values = table.numbers(header)
    high, low = max(values), min(values)
    questions = [
        f"What is the difference between the largest and the smallest number in the column {header}?",
        f"By how much do the highest and the lowest number of {header} differ?",
        f"Calculate the largest minus the smallest number of {header}.",
        f"How far is it from the lowest to the highest number in the column {header}?",
    ]
    steps = [f"{value}:{max(values[:n])}:{min(values[:n])}" for n, value in enumerate(values, start=1)]
    return _ask(
        table, questions, str(high - low), f"{header}; {'; '.join(steps)}; {subtract_steps(high, low)}"
    )


def _sum_where(rng: Random, table: _Table) -> Draw:
    """The sum of a column over the rows with a given word."""
    header = _number_header(rng, table)
    by = rng.choice([name for name in table.header if name in _WORDS])
    words = table.column(by)
    wanted = rng.choice(words)
    values, total = table.numbers(header), _total(header)
    questions = [
        f"What is the {total} of the people with the {by} {wanted}?",
        f"Calculate the {total} where the {by} is {wanted}.",
        f"Find the {total} of all people whose {by} is {wanted}.",
        f"Where the {by} is {wanted}, what is the {total}?",
    ]
    steps, result = [], 0
    for word, value in zip(words, values, strict=True):
        hit = f": {add_steps(result, value) if result else value}" if word == wanted else ""
        steps.append(f"{word} {value}{hit}")
        result += value if word == wanted else 0
    return _ask(table, questions, str(result), f"{header} {wanted}; {'; '.join(steps)}")


def _few_words(rng: Random, rows: int) -> _Table:
    """Draw a table whose only word column has two or three values, so that rows share them."""
    table = _table(rng, rows, numeric=1, words=1, largest=40)
    place = next(place for place, header in enumerate(table.header) if header in _WORDS)
    values = rng.sample(_WORDS[table.header[place]], 2)
    cells = [[*row[:place], rng.choice(values), *row[place + 1 :]] for row in table.rows]
    return _Table(table.header, cells, table.is_markdown)


# --- Tiers -----------------------------------------------------------------------------------------------


def _tier1(rng: Random) -> Draw:
    words = rng.randrange(2)
    table = _table(rng, rng.randint(2, 3), numeric=1 - words, words=words)
    return _cell(rng, table, header=False) if rng.random() < 0.5 else _rows(rng, table, 2)


def _tier2(rng: Random) -> Draw:
    if rng.random() < 0.4:
        table = _table(rng, rng.randint(3, 5), numeric=1, words=rng.randrange(2))
        return _rows(rng, table, rng.randint(2, 3))
    table = _table(rng, rng.randint(2, 3), numeric=1, words=1)
    return _cell(rng, table, header=False) if rng.random() < 0.6 else _row(rng, table)


def _tier3(rng: Random) -> Draw:
    if rng.random() < 0.3:
        return _rows(rng, _table(rng, rng.randint(5, 6), numeric=1, words=1), rng.randint(3, 4))
    if rng.random() < 0.4:
        return _cell(rng, _table(rng, rng.randint(4, 5), numeric=2, words=1), header=True)
    kinds: tuple[Callable[[Random, _Table], Draw], ...] = (_compare, _extreme)
    return rng.choice(kinds)(rng, _table(rng, 3, numeric=1, words=1))


def _tier4(rng: Random) -> Draw:
    if rng.random() < 0.3:
        return _sum(rng, _table(rng, 3, numeric=1, words=1, largest=30))
    kinds: tuple[Callable[[Random, _Table], Draw], ...] = (_compare, _extreme, _count, _two)
    return rng.choice(kinds)(rng, _table(rng, rng.randint(4, 5), numeric=1, words=1))


def _tier5(rng: Random) -> Draw:
    kind = rng.random()
    if kind < 0.3:
        return _sum(rng, _table(rng, rng.randint(4, 5), numeric=1, words=1, largest=40))
    if kind < 0.55:
        return _sum_where(rng, _few_words(rng, 5))
    kinds: tuple[Callable[[Random, _Table], Draw], ...] = (_extreme_other, _range)
    return rng.choice(kinds)(rng, _table(rng, rng.randint(5, 6), numeric=1, words=1))


def _drill(rng: Random) -> Draw:
    """Look-ups by row and, harder to learn, by number."""
    words = rng.randrange(2)
    table = _table(rng, rng.randint(3, 5), numeric=2 - words, words=words)
    draws = [
        _row(rng, table) if rng.random() < 0.7 else _cell(rng, table, header=False)
        for _ in range(_DRILL_QUESTIONS)
    ]
    return exercise(rng, table.text, draws)


def _grade(instance: Instance, text: str) -> bool:
    """Grade as grade_exact does; a cell may come without the name of its row."""
    return grade_exact(instance, text) or normalise(text) == normalise(instance.answer.rpartition(": ")[2])


FAMILY = Family("tables", {1: _tier1, 2: _tier2, 3: _tier3, 4: _tier4, 5: _tier5}, _grade, _drill)
