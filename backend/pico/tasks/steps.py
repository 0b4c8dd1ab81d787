"""Reasoning steps shared by several families: one line of text that ends with the result.

Every step is local: a copy, one column with its carry or borrow, one entry of the multiplication table, one
comparison. There are no spaces, since a space before a digit costs a token.
"""

from __future__ import annotations

from collections.abc import Sequence

DIRECT_LIMIT = 100  # smaller sums and differences need no columns: tiers 1 and 2 teach them directly
LAST_TABLE = 12  # divisors up to this need no list of multiples


def add_steps(left: int, right: int) -> str:
    """Return the steps of a sum: `47+38=85`, or by columns `347+285:7+5=12;4+8+1=13;3+2+1=6;632`."""
    if left < DIRECT_LIMIT and right < DIRECT_LIMIT:
        return f"{left}+{right}={left + right}"
    carry = 0
    columns: list[str] = []
    for upper, lower in _columns(left, right):
        total = upper + lower + carry
        columns.append(f"{upper}+{lower}" + (f"+{carry}" if columns else "") + f"={total}")
        carry = total // 10
    return f"{left}+{right}:{';'.join(columns)};{left + right}"


def subtract_steps(left: int, right: int) -> str:
    """Return the steps of a difference: `85-38=47`, or by columns `632-285:2-5=7b1;3-8-1=4b1;6-2-1=3b0`."""
    if left < right:
        raise ValueError(f"no steps for {left!r} - {right!r}, which is negative; swap the two")
    if left < DIRECT_LIMIT:
        return f"{left}-{right}={left - right}"
    borrow = 0
    columns: list[str] = []
    for upper, lower in _columns(left, right):
        rest = upper - lower - borrow
        text = f"{upper}-{lower}" + (f"-{borrow}" if columns else "")
        borrow = int(rest < 0)
        columns.append(f"{text}={rest % 10}b{borrow}")
    return f"{left}-{right}:{';'.join(columns)};{left - right}"


def multiply_steps(left: int, right: int) -> str:
    """Return the steps of a product, larger factor first: `7*8=56`, `47*8:7*8=56;4*8=32+5=37;376`."""
    left, right = max(left, right), min(left, right)
    if right < 10:
        return _times_digit(left, right)
    parts: list[str] = []
    total = 0
    for place, digit in enumerate(reversed(str(right))):
        partial = left * int(digit) * 10**place
        if digit == "0":
            continue
        parts.append(_times_digit(left, int(digit)))
        if total:
            parts.append(add_steps(partial, total))
        elif place:
            parts.append(str(partial))
        total += partial
    return f"{left}*{right}:{';'.join(parts)}"


def divide_steps(number: int, divisor: int) -> str:
    """Return a long division with remainder: `584/7:58/7=8r2;24/7=3r3;83r3` (83, remainder 3).

    Divisors of two digits show the product that is subtracted, `107/12=8:96r11`; those above 12 list their
    multiples first.
    """
    quotient, rest = divmod(number, divisor)
    if quotient < 10 or divisor == 10:
        return _divide_once(number, divisor)
    taken = 0
    parts: list[str] = []
    digits = str(number)
    for place, digit in enumerate(digits):
        taken = taken * 10 + int(digit)
        if not parts and taken < divisor and place < len(digits) - 1:
            continue
        parts.append(_divide_once(taken, divisor))
        taken %= divisor
    return f"{number}/{divisor}:{';'.join(parts)};{quotient}r{rest}"


def sum_steps(values: Sequence[int]) -> str:
    """Return the steps of a running sum: `3+5=8;8+4=12`; for a single number, that number."""
    total = values[0]
    parts: list[str] = []
    for value in values[1:]:
        parts.append(add_steps(total, value))
        total += value
    return ";".join(parts) or str(total)


def sign_of(left: float, right: float) -> str:
    """Return how the first number compares with the second: `<`, `=` or `>`."""
    return "<" if left < right else ">" if left > right else "="


def compare_steps(left: float, right: float) -> str:
    """Return one comparison: `12,30:<`."""
    return f"{left},{right}:{sign_of(left, right)}"


def extreme_steps(values: Sequence[int], *, largest: bool) -> str:
    """Return the extreme to find, then each number with the best so far: `max;45:45;12:45;78:78`."""
    parts = ["max" if largest else "min"]
    best = values[0]
    for value in values:
        best = max(best, value) if largest else min(best, value)
        parts.append(f"{value}:{best}")
    return ";".join(parts)


def _columns(left: int, right: int) -> list[tuple[int, int]]:
    """Return the digits of both numbers in pairs, units first, the shorter one padded with zeros."""
    width = max(len(str(left)), len(str(right)))
    upper, lower = str(left).zfill(width), str(right).zfill(width)
    return [(int(one), int(other)) for one, other in zip(reversed(upper), reversed(lower), strict=True)]


def _times_digit(left: int, digit: int) -> str:
    """Return the steps of a number times one digit."""
    if left < 10 or digit < 2:
        return f"{left}*{digit}={left * digit}"
    carry = 0
    columns: list[str] = []
    for figure in reversed(str(left)):
        product = int(figure) * digit
        text = f"{figure}*{digit}={product}"
        columns.append(f"{text}+{carry}={product + carry}" if columns else text)
        carry = (product + carry) // 10
    return f"{left}*{digit}:{';'.join(columns)};{left * digit}"


def _divide_once(number: int, divisor: int) -> str:
    """Return a division with a quotient of one digit."""
    quotient, rest = divmod(number, divisor)
    if divisor <= 10:
        return f"{number}/{divisor}={quotient}r{rest}"
    step = f"{number}/{divisor}={quotient}:{divisor * quotient}r{rest}"
    if divisor <= LAST_TABLE or not quotient:
        return step
    multiples = ",".join(str(divisor * factor) for factor in range(1, min(quotient + 2, 10)))
    return f"{multiples};{step}"


def walk_to(sought: str, words: Sequence[str]) -> str:
    """Return the words up to the target: `cat -; pear -; bus +`."""
    return "; ".join([*(f"{word} -" for word in words[: words.index(sought)]), f"{sought} +"])


def count_steps(items: Sequence[str], hits: Sequence[bool], mark: str = " ") -> str:
    """Return every item, hits with their count so far, and the total: `cat dog:1 cow dog:2; 2`."""
    steps, count = [], 0
    for item, hit in zip(items, hits, strict=True):
        count += hit
        steps.append(f"{item}:{count}" if hit else item)
    return f"{mark.join(steps)}; {count}"


def insertion_steps(items: Sequence[str], ranked: Sequence[str], mark: str = ",", space: str = "") -> str:
    """Return the steps of an insertion sort: `9:9;3:3,9;7:3,7,9`; `ranked` has the items in final order.

    Words have `space` before each, as whole-word tokens start with a space: ` dog: dog; cat: cat dog`.
    """
    place = {item: index for index, item in enumerate(ranked)}
    lists = (sorted(items[:count], key=place.__getitem__) for count in range(1, len(items) + 1))
    steps = (f"{space}{item}:{space}{mark.join(found)}" for item, found in zip(items, lists, strict=True))
    return ";".join(steps)
