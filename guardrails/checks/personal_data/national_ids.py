"""National identity and tax numbers: their shapes and check digits.

A shape is written with 9 for a digit and A for a capital letter. A shape that arbitrary numbers often have,
such as eleven digits in a row, counts only after a word that announces an identity number.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

Check = Callable[[str], object]
"""Whether letters and digits, without separators, are what they look like."""


class NationalId(NamedTuple):
    """One kind of number; a word must announce it in its `announced_shapes`."""

    name: str
    check: Check
    shapes: str = ""
    announced_shapes: str = ""


def sum_of(digits: str, weights: Sequence[int]) -> int:
    """Digits times weights."""
    return sum(int(digit) * weight for digit, weight in zip(digits, weights, strict=False))


def has_luhn_digit(digits: str) -> bool:
    """ISO/IEC 7812: every second digit from the right is doubled."""
    doubled = [sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2]]
    return (sum(map(int, digits[-1::-2])) + sum(doubled)) % 10 == 0


def _born(layout: str, check: Check) -> Check:
    """Also the date of birth must be one, which stands where `mm` and `dd` do.

    `MM`: months are up to 80 higher in some centuries; `DD`: days are 60 higher in numbers of foreigners.
    """
    month, day = layout.lower().index("mm"), layout.lower().index("dd")

    def check_both(text: str) -> bool:
        months = int(text[month : month + 2]) % (20 if "MM" in layout else 100)
        days = int(text[day : day + 2]) % (60 if "DD" in layout else 100)
        return 1 <= months <= 12 and 1 <= days <= 31 and bool(check(text))

    return check_both


def _ends_with(last: Callable[[str], object]) -> Check:
    """The last character follows from those before."""
    return lambda text: str(last(text[:-1])) == text[-1]


_VERHOEFF_PERMUTATION = (1, 5, 7, 6, 2, 8, 3, 0, 9, 4)


def _is_aadhaar(digits: str) -> bool:
    """Verhoeff's check digit."""
    total = 0
    for position, char in enumerate(reversed(digits)):
        digit = int(char)
        for _ in range(position % 8):
            digit = _VERHOEFF_PERMUTATION[digit]
        total = _dihedral(total, digit)
    return total == 0 and digits[0] not in "01"


def _dihedral(left: int, right: int) -> int:
    """The product in the group of a pentagon's ten symmetries."""
    if left < 5:
        return (left + right) % 5 if right < 5 else 5 + (left + right) % 5
    return 5 + (left - right) % 5 if right < 5 else (left - right) % 5


def _is_idnr(digits: str) -> bool:
    """Germany: one of the first ten digits stands there twice or three times."""
    return digits[0] != "0" and 8 <= len(set(digits[:10])) <= 9 and _is_oib(digits)


def _is_oib(digits: str) -> bool:
    """Croatia: ISO 7064 modulo 11, 10."""
    product = 10
    for char in digits[:-1]:
        product = ((int(char) + product) % 10 or 10) * 2 % 11
    return (11 - product) % 10 == int(digits[-1])


_ODD_DIGITS = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21)
_ODD_LETTERS = (*_ODD_DIGITS, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23)
_ODD_VALUES = dict(zip("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", _ODD_DIGITS + _ODD_LETTERS, strict=True))


def _is_codice_fiscale(text: str) -> bool:
    odd = sum(_ODD_VALUES[char] for char in text[:15:2])
    even = sum(int(char) if char.isdigit() else ord(char) - 65 for char in text[1:15:2])
    return text[8] in "ABCDEHLMPRST" and chr(65 + (odd + even) % 26) == text[15]


def _is_nif(text: str) -> bool:
    number = text[:-1].translate({88: "0", 89: "1", 90: "2"})  # X, Y, Z of a NIE
    return number.isdigit() and "TRWAGMYFPDXBNJZSQVHLCKE"[int(number) % 23] == text[-1]


_NRIC_LETTERS = {
    "S": "JZIHGFEDCBA",
    "T": "JZIHGFEDCBA",
    "F": "XWUTRQPNMLK",
    "G": "XWUTRQPNMLK",
    "M": "XWUTRQPNJLK",
}


def _is_nric(text: str) -> bool:
    offset = {"T": 4, "G": 4, "M": 3}.get(text[0], 0)
    remainder = (sum_of(text[1:8], (2, 7, 6, 5, 4, 3, 2)) + offset) % 11
    return text[0] in _NRIC_LETTERS and _NRIC_LETTERS[text[0]][remainder] == text[8]


def _is_nir(text: str) -> bool:
    number = text[:13].replace("2A", "19").replace("2B", "18")  # Corsica
    return text[0] in "1278" and number.isdigit() and 97 - int(number) % 97 == int(text[13:])


def _is_cpf(digits: str) -> bool:
    first = sum_of(digits, range(10, 1, -1)) * 10 % 11 % 10
    second = sum_of(digits, range(11, 1, -1)) * 10 % 11 % 10
    return len(set(digits)) > 1 and digits[9:] == f"{first}{second}"


def _is_norwegian(digits: str) -> bool:
    first = -sum_of(digits, (3, 7, 6, 1, 8, 9, 4, 5, 2)) % 11
    second = -sum_of(digits, (5, 4, 3, 2, 7, 6, 5, 4, 3, 2)) % 11
    return digits[9:] == f"{first}{second}"


def _is_tckn(digits: str) -> bool:
    odd, even = sum(map(int, digits[:9:2])), sum(map(int, digits[1:8:2]))
    return digits[0] != "0" and digits[9:] == f"{(odd * 7 - even) % 10}{sum(map(int, digits[:10])) % 10}"


def _is_argentine(digits: str) -> bool:
    remainder = -sum_of(digits[:10], (5, 4, 3, 2, 7, 6, 5, 4, 3, 2)) % 11
    return digits[:2] in ("20", "23", "24", "27", "30", "33", "34") and min(remainder, 9) == int(digits[10])


def _is_belgian(digits: str) -> bool:
    return any(97 - int(century + digits[:9]) % 97 == int(digits[9:]) for century in ("", "2"))


def _resident_letter(body: str) -> str:
    """China: ISO 7064 modulo 11, 2."""
    weights = [2**power % 11 for power in range(17, 0, -1)]
    return "10X98765432"[sum_of(body, weights) % 11] if body[6:8] in ("19", "20") else ""


def _hetu_letter(body: str) -> str:
    """Finland. The sign of the century is a hyphen or a letter."""
    return "0123456789ABCDEFHJKLMNPRSTUVWXY"[int(body[:6] + body[-3:]) % 31]


def _is_rut(text: str) -> bool:
    body = text[-2::-1]
    return "0K987654321"[sum_of(body, (2, 3, 4, 5, 6, 7) * 2) % 11] == text[-1]


def _is_estonian(digits: str) -> bool:
    """Also Lithuania."""
    first, second = (
        sum_of(digits, weights) % 11 for weights in ((*range(1, 10), 1), (*range(3, 10), 1, 2, 3))
    )
    return (second % 10 if first == 10 else first) == int(digits[10])


def _is_pps(text: str) -> bool:
    second = ord(text[8]) - 64 if len(text) == 9 and text[8] != "W" else 0
    return "WABCDEFGHIJKLMNOPQRSTUV"[(sum_of(text[:7], range(8, 1, -1)) + 9 * second) % 23] == text[7]


def _negative_sum(weights: Sequence[int], modulus: int, ten: int = -1) -> Check:
    """The last digit makes the weighted sum 0; `ten` is written where it would be 10."""
    remainders = {10: ten}
    return _ends_with(lambda body: remainders.get(r := -sum_of(body, weights) % modulus, r))


def _zero_sum(weights: Sequence[int], modulus: int) -> Check:
    return lambda digits: sum_of(digits, weights) % modulus == 0


def _matches(pattern: str) -> Check:
    return re.compile(pattern, re.ASCII).fullmatch


_CURP = (
    r"[A-Z][AEIOUX][A-Z]{2}\d\d(?:0[1-9]|1[0-2])(?:[0-2]\d|3[01])[HMX][A-Z]{2}[B-DF-HJ-NP-TV-Z]{3}[A-Z\d]\d"
)
_NINO = r"(?!BG|GB|NK|KN|TN|NT|ZZ)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z]\d{6}[A-D]"
_ABN = (10, *range(1, 20, 2))
_CNP = (2, 7, 9, 1, 4, 6, 3, 5, 8, 2, 7, 9)
_EAN = _negative_sum((1, 3) * 6, 10)
_SWEDISH = _born("yymmDD", has_luhn_digit)
_MY_NUMBER = (6, 5, 4, 3, 2, 7, 6, 5, 4, 3, 2)

NATIONAL_IDS = (
    # name, check, shapes that count anywhere, shapes after a word that announces them
    NationalId("ar_cuit", _is_argentine, "99-99999999-9", "99999999999"),
    NationalId(
        "au_abn", lambda digits: (sum_of(digits, _ABN) - 10) % 89 == 0, "99 999 999 999", "99999999999"
    ),
    NationalId(
        "au_medicare",
        lambda d: d[0] in "23456" and sum_of(d[:8], (1, 3, 7, 9) * 2) % 10 == int(d[8]),
        "9999 99999 9",
        "9999999999",
    ),
    NationalId("au_tfn", _zero_sum((1, 4, 3, 7, 5, 8, 6, 9, 10), 11), "", "999 999 999|999999999"),
    NationalId("be_nn", _born("yymmdd", _is_belgian), "99.99.99-999.99", "99999999999"),
    NationalId(
        "bg_egn",
        _born("yyMMdd", _ends_with(lambda body: sum_of(body, (2, 4, 8, 5, 10, 9, 7, 3, 6)) % 11 % 10)),
        "",
        "9999999999",
    ),
    NationalId("br_cpf", _is_cpf, "999.999.999-99", "99999999999|999999999-99|999 999 999 99"),
    NationalId("ca_sin", has_luhn_digit, "", "999 999 999|999-999-999|999999999"),
    NationalId(
        "ch_ahv",
        lambda digits: digits.startswith("756") and _EAN(digits),
        "999.9999.9999.99",
        "9999999999999",
    ),
    NationalId(
        "cl_rut", _is_rut, "99.999.999-9|9.999.999-9|99.999.999-A|9.999.999-A", "99999999-9|99999999-A"
    ),
    NationalId(
        "cn_resident",
        _born("........yymmdd", _ends_with(_resident_letter)),
        "999999999999999999|99999999999999999A",
    ),
    NationalId("cz_rc", _zero_sum((-1, 1) * 5, 11), "999999/9999", "9999999999"),
    NationalId("de_idnr", _is_idnr, "99 999 999 999", "99999999999"),
    NationalId("dk_cpr", _born("ddmm", bool), "", "999999-9999|9999999999"),
    NationalId("ee_ik", _is_estonian, "", "99999999999"),
    NationalId(
        "es_nif", _is_nif, "99999999A|99999999-A|99.999.999-A|A9999999A|A-9999999-A|A9999999-A|99999999 A"
    ),
    NationalId(
        "fi_hetu", _born("ddmm", _ends_with(_hetu_letter)), "999999-999A|999999-9999|999999A999A|999999A9999"
    ),
    NationalId(
        "fr_nir", _is_nir, "999999999999999|9 99 99 99 999 999 99|9 99 99 9A 999 999 99|999999A99999999"
    ),
    NationalId("gb_nhs", _negative_sum(range(10, 1, -1), 11), "999 999 9999", "9999999999|999-999-9999"),
    NationalId("gb_nino", _matches(_NINO), "AA999999A|AA 99 99 99 A|AA 999999 A|AA-99-99-99-A"),
    NationalId("gr_amka", _born("ddmm", has_luhn_digit), "", "99999999999"),
    NationalId("hr_oib", _is_oib, "", "99999999999"),
    NationalId("ie_pps", _is_pps, "9999999AA", "9999999A"),
    NationalId("il_id", has_luhn_digit, "", "999999999|99999999-9"),
    NationalId("in_aadhaar", _is_aadhaar, "9999 9999 9999", "999999999999|9999-9999-9999"),
    NationalId("in_pan", _matches(r"[A-Z]{3}[ABCFGHJLPT][A-Z]\d{4}[A-Z]"), "AAAAA9999A"),
    NationalId("it_codice_fiscale", _is_codice_fiscale, "AAAAAA99A99A999A"),
    NationalId("jp_my_number", _negative_sum(_MY_NUMBER, 11, ten=0), "", "999999999999|9999 9999 9999"),
    NationalId("kr_rrn", _born("yymmdd", bool), "999999-9999999", "9999999999999"),
    NationalId("mx_curp", _matches(_CURP), "AAAA999999AAAAAA99|AAAA999999AAAAAAA9"),
    NationalId("nl_bsn", _zero_sum((*range(9, 1, -1), -1), 11), "", "999999999|9999.99.999|999 999 999"),
    NationalId("no_fodselsnummer", _is_norwegian, "999999 99999", "99999999999"),
    NationalId("pl_pesel", _born("yyMMdd", _negative_sum((1, 3, 7, 9) * 3, 10)), "", "99999999999"),
    NationalId("pt_nif", _negative_sum(range(9, 1, -1), 11, ten=0), "", "999999999|999 999 999"),
    NationalId(
        "ro_cnp",
        _born(".yymmdd", _ends_with(lambda body: (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1)[sum_of(body, _CNP) % 11])),
        "",
        "9999999999999",
    ),
    NationalId(
        "se_personnummer",
        lambda digits: _SWEDISH(digits[-10:]),
        "999999-9999|99999999-9999",
        "9999999999|999999999999",
    ),
    NationalId("sg_nric", _is_nric, "A9999999A"),
    NationalId(
        "th_id",
        _ends_with(lambda body: (11 - sum_of(body, range(13, 1, -1)) % 11) % 10),
        "9-9999-99999-99-9|9 9999 99999 99 9",
        "9999999999999",
    ),
    NationalId("tr_tckn", _is_tckn, "", "99999999999"),
    NationalId(
        "us_itin", _matches(r"9\d\d(?:5\d|6[0-5]|7\d|8[0-8]|9[0-24-9])\d{4}"), "999-99-9999", "999999999"
    ),
    NationalId("za_id", _born("yymmdd", has_luhn_digit), "", "9999999999999|999999 9999 999"),
)

SHAPES: dict[str, list[tuple[NationalId, bool]]] = defaultdict(list)
"""By shape: the numbers that have it, and whether a word must announce them."""
for _id in NATIONAL_IDS:
    for _shape in _id.shapes.split("|"):
        SHAPES[_shape].append((_id, False))
    for _shape in _id.announced_shapes.split("|"):
        SHAPES[_shape].append((_id, True))
