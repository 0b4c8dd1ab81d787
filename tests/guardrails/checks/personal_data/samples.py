"""Sentences with personal data of a fixed shape, drawn at random: `python -m … > FILE` for penstock eval."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import string
from collections.abc import Callable, Iterator
from typing import Any

from guardrails.checks.personal_data.national_ids import NATIONAL_IDS, has_luhn_digit
from guardrails.checks.personal_data.network import _BASE58

PHONES = (
    "(299) 299-9999", "299-299-9999", "+1 299 299 9999", "+49 199 9999999", "+44 20 7999 9999", 
    "+33 1 99 99 99 99", "020 7999 9999", "0151 29999999", "01 99 99 99 99", "099 999 99 99",
)  # fmt: skip
TLDS = ("com", "co.uk", "org", "de")
ANNOUNCED = ("My {} is @.", "{}: @", "the {} number is @, thanks", '{{"{}": "@"}}', "Please note my {} @")
ANYWHERE = (
    "@",
    "It is @.",
    "Use @ for this, please.",
    "value=@",
    "({}) @",
    "I wrote @ into the form, was that right?",
)
NAMES = {
    "card": ["credit card", "card", "Visa"], "iban": ["IBAN", "account"],
    "ssn": ["SSN", "social security number"], "email": ["email", "e-mail address"], "ip": ["IP", "server"],
    "mac": ["MAC", "device"], "crypto_address": ["wallet", "bitcoin address"], "api_key": ["key", "token"],
    "jwt": ["token", "session"], "phone": ["phone", "mobile", "tel"], "passport": ["passport"],
    "password": ["password", "pwd"], "driver_license": ["driver's license", "driving licence"],
    "bank_account": ["account number", "bank account"],
    "national_id": ["national id", "tax id", "identity card"],
}  # fmt: skip


class Samples:
    """Draws values and the sentences around them."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._values: dict[
            str, Callable[[], tuple[str, bool]]
        ] = {  # a value, and whether a word must announce it
            "card": lambda: (self._card(), False),
            "iban": lambda: (self._iban(), False),
            "ssn": lambda: (
                self._fill(
                    f"{self._draw.choice('12345678')}99-{self._draw.choice('1234')}9-9{self._digit1()}99"
                ),
                False,
            ),
            "phone": self._phone,
            "email": lambda: (
                f"{self._word()}{self._draw.choice('._-')}{self._word()}@{self._word()}.{self._draw.choice(TLDS)}",
                False,
            ),
            "ip": lambda: (self._draw.choice([self._ipv4, self._ipv6])(), False),
            "mac": lambda: (self._mac(), False),
            "crypto_address": lambda: (self._draw.choice([self._bitcoin, self._ethereum])(), False),
            "api_key": lambda: (self._key(), False),
            "jwt": lambda: (f"eyJ{self._token(20)}.eyJ{self._token(40)}.{self._token(43)}", False),
            "password": lambda: (
                f"{self._word()}{self._draw.randint(10, 999)}{self._draw.choice('!#$*')}",
                True,
            ),
            "passport": lambda: (self._fill(self._draw.choice(["A9999999", "999999999", "AA999999"])), True),
            "driver_license": lambda: (
                self._fill(self._draw.choice(["A9999999", "99999999", "A999999999999"])),
                True,
            ),
            "bank_account": lambda: (self._fill("9" * self._draw.randint(8, 12)), True),
            "national_id": self._national_id,
        }

    def rows(self, kind: str, count: int) -> Iterator[dict[str, Any]]:
        """Texts with one value each."""
        for _ in range(count):
            value, needs_words = self._values[kind]()
            templates = ANNOUNCED if needs_words else ANNOUNCED + ANYWHERE
            if kind == "password":
                templates = ("My {} is @.", "{}: @", "{}=@", '{{"{}": "@"}}')
            template = self._draw.choice(templates).replace("{}", self._draw.choice(NAMES[kind]))
            text = template.replace("{{", "{").replace("}}", "}")
            start = text.index("@")
            span = {"start": start, "end": start + len(value), "type": kind.upper()}
            yield {"text": text.replace("@", value), "spans": [span], "source": "samples"}

    @property
    def kinds(self) -> list[str]:
        """All."""
        return list(self._values)

    def _digit1(self) -> str:
        return self._draw.choice("123456789")

    def _fill(self, shape: str) -> str:
        letters = {"9": string.digits, "A": string.ascii_uppercase}
        return "".join(self._draw.choice(letters.get(char, char)) for char in shape)

    def _word(self) -> str:
        return "".join(self._draw.choices(string.ascii_lowercase, k=self._draw.randint(3, 8)))

    def _token(self, length: int, alphabet: str = string.ascii_letters + string.digits) -> str:
        return "".join(self._draw.choices(alphabet, k=length))

    def _card(self) -> str:
        while True:
            prefix, length = self._draw.choice(
                [("4", 16), ("5" + self._draw.choice("12345"), 16), ("37", 15), ("6011", 16)]
            )
            number = prefix + self._fill("9" * (length - len(prefix)))
            if has_luhn_digit(number):
                groups = (4, 6, 5) if length == 15 else (4, 4, 4, 4)
                ends = [sum(groups[:n]) for n in range(len(groups) + 1)]
                separator = self._draw.choice(["", " ", "-"])
                return separator.join(number[a:b] for a, b in itertools.pairwise(ends))

    def _iban(self) -> str:
        country, shape = self._draw.choice(
            [
                ("DE", "9" * 18),
                ("GB", "AAAA" + "9" * 14),
                ("FR", "9" * 10 + "9" * 11 + "99"),
                ("NL", "AAAA9999999999"),
                ("ES", "9" * 20),
                ("PL", "9" * 24),
            ]
        )
        body = self._fill(shape)
        number = int("".join(str(int(char, 36)) for char in f"{body}{country}00"))
        compact = f"{country}{98 - number % 97:02}{body}"
        return (
            compact
            if self._draw.random() < 0.5
            else " ".join(compact[at : at + 4] for at in range(0, len(compact), 4))
        )

    def _phone(self) -> tuple[str, bool]:
        if self._draw.random() < 0.25:
            return self._fill(self._draw.choice(["999 999 999", "29999999", "999 9999"])), True
        return self._fill(self._draw.choice(PHONES)), False

    def _ipv4(self) -> str:
        first = self._draw.choice([8, 23, 51, 84, 93, 185, 212])
        return (
            f"{first}.{self._draw.randint(0, 255)}.{self._draw.randint(0, 255)}.{self._draw.randint(1, 254)}"
        )

    def _ipv6(self) -> str:
        groups = [
            "2a0" + self._draw.choice("012346789"),
            *(f"{self._draw.getrandbits(16):x}" for _ in range(7)),
        ]
        return ":".join(groups) if self._draw.random() < 0.5 else f"{':'.join(groups[:3])}::{groups[7]}"

    def _mac(self) -> str:
        octets = [self._draw.getrandbits(8) & 0xFC, *(self._draw.getrandbits(8) for _ in range(5))]
        return self._draw.choice(":-").join(f"{octet:02x}" for octet in octets)

    def _bitcoin(self) -> str:
        payload = b"\0" + self._draw.randbytes(20)
        payload += hashlib.sha256(hashlib.sha256(payload).digest()).digest()[:4]
        number, text = int.from_bytes(payload, "big"), ""
        while number:
            number, digit = divmod(number, 58)
            text = _BASE58[digit] + text
        return "1" + text

    def _ethereum(self) -> str:
        return f"0x{self._draw.getrandbits(160):040x}"

    def _key(self) -> str:
        prefix, length = self._draw.choice(
            [
                ("sk-proj-", 48),
                ("sk-ant-api03-", 80),
                ("ghp_", 36),
                ("glpat-", 20),
                ("hf_", 34),
                ("npm_", 36),
                ("sk_live_", 24),
                ("AIza", 35),
                ("xoxb-", 40),
            ]
        )
        return prefix + self._token(length)

    def _national_id(self) -> tuple[str, bool]:
        while True:
            kind = self._draw.choice(NATIONAL_IDS)
            shapes = [(shape, False) for shape in kind.shapes.split("|")] + [
                (s, True) for s in kind.announced_shapes.split("|")
            ]
            shape, needs_words = self._draw.choice([each for each in shapes if each[0]])
            for _ in range(20_000):
                value = self._fill(shape)
                if kind.check("".join(filter(str.isalnum, value))):
                    return value, needs_words


if __name__ == "__main__":
    samples = Samples(seed=1)
    for name in samples.kinds:
        for row in samples.rows(name, 300):
            print(json.dumps(row))
