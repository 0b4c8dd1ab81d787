"""Multi-turn conversations whose last question refers to earlier turns."""

from __future__ import annotations

from random import Random

from backend.pico.tasks import reference_numbers as numbers
from backend.pico.tasks import reference_words as words
from backend.pico.tasks.base import Draw, Family


def _tier1(rng: Random) -> Draw:
    return rng.choice((numbers.other_parity, numbers.other_extreme, words.again, words.about_me))(rng)


def _tier2(rng: Random) -> Draw:
    kind = rng.randrange(5)
    if kind == 0:
        return numbers.double_that(rng, 20)
    if kind == 1:
        return numbers.change_that(rng, 40, 9)
    if kind == 2:
        return numbers.other_operand(rng, 80, 9)
    return words.nth_of_list(rng, rng.randint(3, 4)) if kind == 3 else words.place_of_person(rng, 2)


def _tier3(rng: Random) -> Draw:
    kind = rng.randrange(7)
    if kind == 0:
        return numbers.change_that(rng, 300, 200)
    if kind == 1:
        return numbers.multiply_that(rng, 40)
    if kind == 2:
        return numbers.other_operand(rng, 300, 200)
    if kind == 3:
        return words.nth_of_list(rng, rng.randint(5, 6))
    if kind == 4:
        return words.neighbour_in_list(rng, rng.randint(4, 6))
    return words.place_of_person(rng, 4) if kind == 5 else numbers.running_count(rng, 50, 2)


def _tier4(rng: Random) -> Draw:
    kind = rng.randrange(5)
    if kind == 0:
        return numbers.then_double(rng, 40)
    if kind == 1:
        return numbers.between_results(rng, 200)
    if kind == 2:
        return numbers.running_count(rng, 60, rng.randint(3, 4))
    return words.place_of_job(rng, 3, 0) if kind == 3 else words.earlier_message(rng, rng.randint(3, 4))


def _tier5(rng: Random) -> Draw:
    kind = rng.randrange(3)
    if kind == 0:
        return numbers.all_results(rng, 80, rng.randint(3, 4))
    if kind == 1:
        return numbers.running_count(rng, 50, rng.randint(4, 5), others=True)
    return words.place_of_job(rng, rng.randint(3, 4), rng.randint(1, 3))


FAMILY = Family("references", {1: _tier1, 2: _tier2, 3: _tier3, 4: _tier4, 5: _tier5})
