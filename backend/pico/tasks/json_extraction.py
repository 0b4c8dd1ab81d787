"""JSON extraction from a text by a given schema, in the style of json.dumps; any equal JSON is right."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random

from backend.pico.tasks.base import Draw, Family, Instance, join_words
from backend.pico.tasks.steps import compare_steps, insertion_steps, sum_steps
from backend.pico.tasks.tool_calls import NO_JSON
from backend.pico.tasks.words import CATEGORIES, CITIES, FIRST_NAMES, JOBS, with_article

Value = str | int | None
_Person = dict[str, Value]

_FIELDS = ("age", "city", "job", "colour", "animal")
_STATEMENTS: dict[str, tuple[str, ...]] = {
    "age": ("{name} is {value} years old.", "The age of {name} is {value}."),
    "city": ("{name} lives in {value}.", "{name} has a house in {value}."),
    "job": ("{name} works as {value}.", "{name} has a job as {value}."),
    "colour": ("The favourite colour of {name} is {value}.", "{name} likes the colour {value} best."),
    "animal": ("{name} has {value}.", "The animal of {name} is {value}."),
}


def _value(rng: Random, field: str) -> Value:
    if field == "age":
        return rng.randint(5, 95)
    return rng.choice(
        {"city": CITIES, "job": JOBS, "colour": CATEGORIES["colour"], "animal": CATEGORIES["animal"]}[field]
    )


def _person(rng: Random, name: str, fields: Sequence[str]) -> _Person:
    return {"name": name} | {field: _value(rng, field) for field in fields}


def _statements(rng: Random, person: _Person) -> list[str]:
    """Return one sentence per field of the person except the name, in random order."""
    found = []
    for field, value in person.items():
        if field != "name":
            said = with_article(str(value)) if field in ("job", "animal") else value
            found.append(rng.choice(_STATEMENTS[field]).format(name=person["name"], value=said))
    rng.shuffle(found)
    return found


def _dump(value: object) -> str:
    return json.dumps(value)


def _schema(keys: Sequence[str]) -> str:
    """Return the keys with their types: `{"name": string, "age": number}`."""
    fields = (f'"{key}": {"number" if key in ("age", "total") else "string"}' for key in keys)
    return "{" + ", ".join(fields) + "}"


def _prompts(text: str, keys: Sequence[str], whose: str = "") -> list[str]:
    listed = ", ".join(keys)
    return [
        f"Give {listed}{whose} as JSON: {text}",
        f"{text}\nWrite {listed}{whose} as JSON.",
        f"Find {listed}{whose} in the text. Answer as JSON.\n{text}",
        f"Schema: {_schema(keys)}\nText: {text}" + (f"\nOnly{whose}." if whose else ""),
        f"{text} Reply only with JSON{whose}: {_schema(keys)}",
    ]


def _steps(person: _Person, keys: Sequence[str]) -> str:
    """Return what the text says about a person, field by field, with a dash for nothing."""
    said = (f"{key} {person.get(key, '-')}" for key in keys)
    return f"{person['name']}: {'; '.join(said)}"


def _as_read(names: Sequence[str], text: str) -> list[str]:
    """Return the names in order of appearance in the text."""
    return sorted(names, key=lambda name: text.index(f"{name} "))


def _one(rng: Random, fields: int, asked: int) -> Draw:
    """Some fields of the only person in the text."""
    person = _person(rng, rng.choice(FIRST_NAMES), rng.sample(_FIELDS, fields))
    keys = rng.sample(list(person), asked)
    text = " ".join(_statements(rng, person))
    answer = {key: person[key] for key in keys}
    thought = "; ".join(f"{key} {person[key]}" for key in keys)
    return Draw(_prompts(text, keys), _dump(answer), text, thought)


def _tier1(rng: Random) -> Draw:
    fields = rng.randint(1, 2)
    return _one(rng, fields, rng.randint(1, 2))


def _tier2(rng: Random) -> Draw:
    return _one(rng, rng.randint(2, 3), rng.randint(2, 3))


def _tier3(rng: Random) -> Draw:
    """One of two people; what the text does not say is null."""
    fields = rng.sample(_FIELDS, 3)
    people = [_person(rng, name, rng.sample(fields, 2)) for name in rng.sample(FIRST_NAMES, 2)]
    person = people[0]
    keys = ["name", *fields] if rng.random() < 0.5 else fields
    text = _mixed(rng, people)
    answer = {key: person.get(key) for key in keys}
    return Draw(_prompts(text, keys, f" of {person['name']}"), _dump(answer), text, _steps(person, keys))


def _mixed(rng: Random, people: Sequence[_Person]) -> str:
    statements = [statement for person in people for statement in _statements(rng, person)]
    rng.shuffle(statements)
    return " ".join(statements)


def _list_prompts(text: str, keys: Sequence[str], which: str) -> list[str]:
    """Return prompts for a list of objects; `which` names the people and their order."""
    listed = ", ".join(keys)
    return [
        f"Give a JSON list with {listed} of {which}: {text}",
        f"{text}\nWrite a JSON list with {listed} of {which}.",
        f"{text}\nSchema: [{_schema(keys)}], {which}.",
        f"Find {which} in the text. Answer with a JSON list: [{_schema(keys)}]\n{text}",
    ]


def _tier4(rng: Random) -> Draw:
    """Both people in alphabetical order, with null for what is missing."""
    fields = rng.sample(_FIELDS, rng.randint(2, 3))
    names = sorted(rng.sample(FIRST_NAMES, 2))
    people = [_person(rng, name, rng.sample(fields, rng.randint(1, len(fields)))) for name in names]
    keys, text = ["name", *fields], _mixed(rng, people)
    answer = [{key: person.get(key) for key in keys} for person in people]
    steps = f"{_steps(people[0], fields)} | {_steps(people[1], fields)}"
    prompts = _list_prompts(text, keys, "all people from A to Z")
    return Draw(prompts, _dump(answer), text, f"{join_words(_as_read(names, text))} | {steps}")


def _three(rng: Random) -> tuple[list[_Person], list[str], str]:
    """Return three people of different ages, their keys and the text about them."""
    field = rng.choice([name for name in _FIELDS if name != "age"])
    ages = rng.sample(range(10, 90), 3)
    names = rng.sample(FIRST_NAMES, 3)
    people = [_person(rng, name, (field,)) | {"age": age} for name, age in zip(names, ages, strict=True)]
    keys, text = ["name", "age", field], _mixed(rng, people)
    people.sort(key=lambda person: text.index(f"{person['name']} "))  # in order of appearance
    return people, keys, text


def _filtered(rng: Random) -> Draw:
    """The people above or below an age, in alphabetical order."""
    people, keys, text = _three(rng)
    read = join_words([str(person["name"]) for person in people])
    people = sorted(people, key=lambda person: str(person["name"]))
    ages = [_age(person) for person in people]
    limit = rng.choice((sorted(ages)[1] - 1, sorted(ages)[1] + 1, sorted(ages)[2] - 1))
    above = rng.random() < 0.5
    steps, hits = [], []
    for person, age in zip(people, ages, strict=True):
        hit = age > limit if above else age < limit
        row = " ".join(str(person[key]) for key in keys)
        steps.append(f"{row}: {compare_steps(age, limit)} {'+' if hit else '-'}")
        hits += [person] if hit else []
    which = f"the people {'older' if above else 'younger'} than {limit} from A to Z"
    answer = [{key: person[key] for key in keys} for person in hits]
    thought = f"{read} | {'>' if above else '<'} {limit}; {'; '.join(steps)}"
    return Draw(_list_prompts(text, keys, which), _dump(answer), text, thought)


def _age(person: _Person) -> int:
    return int(str(person["age"]))


def _by_age(rng: Random) -> Draw:
    people, keys, text = _three(rng)
    ranked = sorted(people, key=_age)
    answer = [{key: person[key] for key in keys} for person in ranked]
    rows = "; ".join(" ".join(str(person[key]) for key in keys) for person in people)
    aged = [[f"{person['name']} {person['age']}" for person in each] for each in (people, ranked)]
    prompts = _list_prompts(text, keys, "all people from the youngest to the oldest")
    return Draw(prompts, _dump(answer), text, f"{rows} |{insertion_steps(aged[0], aged[1], ' ', ' ')}")


def _summary(rng: Random) -> Draw:
    """The oldest person and the total of the ages."""
    people, _, text = _three(rng)
    ages = [_age(person) for person in people]
    keys, steps = ["oldest", "total"], []
    for count, person in enumerate(people, start=1):
        oldest = max(people[:count], key=_age)["name"]
        steps.append(f"{person['name']} {person['age']}: {oldest} {max(ages[:count])}")
    thought = f"max; {'; '.join(steps)}; {oldest}; {sum_steps(ages)}"
    prompts = [
        f"Give the oldest person and the total of all ages as JSON with the keys oldest, total: {text}",
        f"{text}\nWho is the oldest, and what is the total of the ages? Answer as JSON: {_schema(keys)}",
        f"Schema: {_schema(keys)}, the oldest person and the total of all ages.\nText: {text}",
        f"Find the oldest person and the total of the ages. Reply only with JSON: {_schema(keys)}\n{text}",
    ]
    return Draw(prompts, _dump({"oldest": oldest, "total": sum(ages)}), text, thought)


def _tier5(rng: Random) -> Draw:
    return rng.choice((_filtered, _by_age, _summary))(rng)


def grade(instance: Instance, text: str) -> bool:
    """Return whether the text is JSON equal to the answer: key order and spacing are free, types are not."""
    try:
        found = json.dumps(json.loads(text.strip().removesuffix(".")), sort_keys=True)
    except NO_JSON:
        return False
    return found == json.dumps(json.loads(instance.answer), sort_keys=True)


FAMILY = Family("json_extraction", {1: _tier1, 2: _tier2, 3: _tier3, 4: _tier4, 5: _tier5}, grader=grade)
