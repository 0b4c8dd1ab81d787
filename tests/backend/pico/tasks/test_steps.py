"""The shared reasoning steps are local and end with the right result."""

from __future__ import annotations

import math
import re
from random import Random

import pytest

from backend.pico.tasks.steps import (
    add_steps,
    compare_steps,
    divide_steps,
    extreme_steps,
    insertion_steps,
    multiply_steps,
    subtract_steps,
    sum_steps,
)


def _last_number(text: str) -> int:
    return int(re.findall(r"\d+", text)[-1])


def test_layouts() -> None:
    assert add_steps(47, 38) == "47+38=85"
    assert add_steps(347, 85) == "347+85:7+5=12;4+8+1=13;3+0+1=4;432"
    assert subtract_steps(632, 285) == "632-285:2-5=7b1;3-8-1=4b1;6-2-1=3b0;347"
    assert multiply_steps(8, 47) == "47*8:7*8=56;4*8=32+5=37;376"
    assert multiply_steps(20, 47) == "47*20:47*2:7*2=14;4*2=8+1=9;94;940"
    assert divide_steps(584, 7) == "584/7:58/7=8r2;24/7=3r3;83r3"
    assert divide_steps(107, 12) == "107/12=8:96r11"
    assert divide_steps(100, 24) == "24,48,72,96,120;100/24=4:96r4"
    assert divide_steps(604, 3) == "604/3:6/3=2r0;0/3=0r0;4/3=1r1;201r1"
    assert sum_steps([3, 5, 4]) == "3+5=8;8+4=12"
    assert compare_steps(12, 30) == "12,30:<"
    assert extreme_steps([45, 12, 78], largest=True) == "max;45:45;12:45;78:78"
    assert insertion_steps(["9", "3", "7"], ["3", "7", "9"]) == "9:9;3:3,9;7:3,7,9"
    assert insertion_steps(["dog", "cat"], ["cat", "dog"], " ", " ") == " dog: dog; cat: cat dog"


def test_results_are_right() -> None:
    rng = Random(0)
    for _ in range(500):
        left, right = rng.randrange(10 ** rng.randint(1, 5)), rng.randrange(1, 10 ** rng.randint(1, 3))
        high, low = max(left, right), min(left, right)
        assert _last_number(add_steps(left, right)) == left + right
        assert _last_number(subtract_steps(high, low)) == high - low
        assert _last_number(multiply_steps(left, right)) == left * right
        quotient, rest = divmod(left, right % 99 + 1)
        found = re.search(r"(?:=|;)(\d+)(?::\d+)?r(\d+)$", divide_steps(left, right % 99 + 1))
        assert found is not None
        assert (int(found[1]), int(found[2])) == (quotient, rest)


def test_every_column_of_the_steps_holds() -> None:
    for text in (add_steps(98765, 4321), multiply_steps(97, 86), multiply_steps(7, 999)):
        columns = re.findall(r"(?:^|[;:])([\d+]+|\d+\*\d)=(\d+)", text)
        assert len(columns) >= 3
        for terms, value in columns:
            factors = [int(term) for term in re.split(r"[+*]", terms)]
            assert (math.prod(factors) if "*" in terms else sum(factors)) == int(value)


def test_a_negative_difference_is_refused() -> None:
    with pytest.raises(ValueError, match="swap"):
        subtract_steps(3, 5)
