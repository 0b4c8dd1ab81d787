"""References to words of earlier turns: names, places, jobs, lists, earlier answers."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from backend.pico.tasks.base import Draw, join_words
from backend.pico.tasks.reference_numbers import Exchange, is_trained, talk
from backend.pico.tasks.steps import walk_to
from backend.pico.tasks.words import CITIES, FIRST_NAMES, JOBS, city, distinct, person

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


def _echoed(rng: Random) -> str:
    """Return words that the model was asked to say."""
    while True:
        text = " ".join(distinct(rng, rng.randint(1, 3)))
        if is_trained("strings", f"echo {text}"):
            return text


def again(rng: Random) -> Draw:
    """ "Say it again." after an answer."""
    text = _echoed(rng)
    asked = rng.choice((f"Say {text}", f'Say "{text}".', f"Repeat: {text}", f"Echo: {text}"))
    prompts = ["Say it again.", "Repeat that.", "Once more, please.", "What did you say?", "Again."]
    return Draw(prompts, text, f"again {text}", text, talk((asked, text)))


def about_me(rng: Random) -> Draw:
    """The user's name or city, told one turn earlier."""
    name, place = person(rng), city(rng)
    told = (
        f"My name is {name} and I live in {place}.",
        f"I am {name} from {place}.",
        f"I am {name}. I live in {place}.",
    )
    context = talk((rng.choice(told), rng.choice((f"Nice to meet you, {name}.", "OK."))))
    if rng.random() < 0.5:
        prompts = ["What is my name?", "Who am I?", "Tell me my name.", "Do you remember my name?"]
        return Draw(prompts, name, f"name {name} {place}", name, context)
    prompts = [
        "Where do I live?",
        "Which city do I live in?",
        "Tell me my city.",
        "Do you remember where I live?",
    ]
    return Draw(prompts, place, f"city {name} {place}", place, context)


def _remember(rng: Random, words: list[str]) -> Exchange:
    text = join_words(words)
    asked = (
        f"Remember this list: {text}",
        f"Here is a list: {text}",
        f"My list: {text}",
        f"Keep in mind: {text}",
    )
    return rng.choice(asked), "OK."


def _numbered(words: list[str]) -> str:
    return " ".join(f"{number} {word}" for number, word in enumerate(words, 1))


def nth_of_list(rng: Random, count: int) -> Draw:
    """A word of an earlier list by its position."""
    words = distinct(rng, count)
    place = rng.randrange(count)
    which = _ORDINALS[place]
    prompts = [f"What was the {which} word?", f"Which word was {which}?", f"And the {which} one?"]
    prompts.append(f"Tell me the {which} word of the list.")
    steps = _numbered(words[: place + 1])
    return Draw(prompts, words[place], f"{which} {words}", steps, talk(_remember(rng, words)))


def neighbour_in_list(rng: Random, count: int) -> Draw:
    """The word before or after another word of an earlier list."""
    words = distinct(rng, count)
    place, after = rng.randrange(1, count), rng.random() < 0.5
    first, second = words[place - 1 : place + 1]
    known, answer, side = (first, second, "after") if after else (second, first, "before")
    prompts = [f"Which word comes {side} {known}?", f"What is {side} {known}?", f"What came {side} {known}?"]
    prompts.append(f"And the word {side} {known}?")
    # Every word with its neighbour: the answer then repeats what followed the word.
    pairs = [pair if after else pair[::-1] for pair in pairwise(words)]
    sign = ">" if after else "<"
    steps = "; ".join(f"{word}{sign} {neighbour}" for word, neighbour in [*pairs, (known, answer)])
    return Draw(prompts, answer, f"{side} {known} {words}", steps, talk(_remember(rng, words)))


def place_of_person(rng: Random, count: int) -> Draw:
    """Where someone lives, or who lives there, told in earlier turns."""
    names, places = rng.sample(FIRST_NAMES, count), rng.sample(CITIES, count)
    told = [f"{name} lives in {place}." for name, place in zip(names, places, strict=True)]
    context, chosen = talk(*((line, "OK.") for line in told)), rng.randrange(count)
    name, place = names[chosen], places[chosen]
    if rng.random() < 0.5:
        prompts = [
            f"Where does {name} live?",
            f"And where does {name} live?",
            f"Which city does {name} live in?",
        ]
        prompts.append(f"Where is {name} at home?")
        return Draw(prompts, place, f"{name} {told}", f"{name} {place}", context)
    prompts = [f"Who lives in {place}?", f"And who lives in {place}?", f"Who is at home in {place}?"]
    prompts.append(f"Which person lives in {place}?")
    lines = [f"{who} {where}" for who, where in zip(names, places, strict=True)]
    return Draw(prompts, name, f"{place} {told}", f"{place}? {walk_to(lines[chosen], lines)}", context)


def place_of_job(rng: Random, count: int, moves: int) -> Draw:
    """Where the baker lives: from the job to the person to the city, after some people moved."""
    names, jobs = rng.sample(FIRST_NAMES, count), rng.sample(JOBS, count)
    places = rng.sample(CITIES, count + moves)
    told = [f"{name} is a {job}." for name, job in zip(names, jobs, strict=True)]
    told = [told_one.replace(" a engineer", " an engineer") for told_one in told]
    homes = dict(zip(names, places[:count], strict=True))
    told += [f"{name} lives in {place}." for name, place in homes.items()]
    chosen = rng.randrange(count)
    history = [homes[names[chosen]]]
    for place in places[count:]:
        mover = names[chosen] if rng.random() < 0.6 else rng.choice(names)
        told.append(f"{mover} moves to {place}.")
        homes[mover] = place
        history += [place] if mover == names[chosen] else []
    job, name = jobs[chosen], names[chosen]
    prompts = [f"Where does the {job} live now?", f"In which city does the {job} live now?"]
    prompts += [f"And where does the {job} live?", f"Which city is the {job} in now?"]
    lines = [" ".join(told[start : start + 2]) for start in range(0, len(told), 2)]
    steps = f"{job} {name}; {name} {', '.join(history)}"
    return Draw(prompts, homes[name], f"{job} {told}", steps, talk(*((line, "OK.") for line in lines)))


def earlier_message(rng: Random, count: int) -> Draw:
    """One of the user's earlier messages by its position."""
    texts = [_echoed(rng) for _ in range(count)]
    place = rng.randrange(count)
    which = "last" if place == count - 1 and rng.random() < 0.5 else _ORDINALS[place]
    context = talk(*((f"Say {text}", text) for text in texts))
    prompts = [
        f"What was your {which} answer?",
        f"Repeat your {which} answer.",
        f"Say your {which} answer again.",
    ]
    prompts.append(f"Tell me your {which} answer.")
    steps = "; ".join(f"{number} {text}" for number, text in enumerate(texts[: place + 1], 1))
    return Draw(prompts, texts[place], f"{which} {texts}", steps, context)
