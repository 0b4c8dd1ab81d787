from __future__ import annotations

import pytest

from guardrails.checks.personal_data.numbers import search
from guardrails.checks.personal_data.patterns import KINDS


def found(text: str) -> tuple[str, str]:
    span = search(text, 0, KINDS)
    return ("", "") if span is None else (span.kind, text[span.start : span.end])


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("Card 4111 1111 1111 1111, please", "card", "4111 1111 1111 1111"),
        ("378282246310005", "card", "378282246310005"),
        ("my card 180016070420458", "card", "180016070420458"),
        ("to DE89 3704 0044 0532 0130 00 AND MORE", "iban", "DE89 3704 0044 0532 0130 00"),
        ("iban gb29nwbk60161331926819.", "iban", "gb29nwbk60161331926819"),
        ("SSN: 123-45-6789", "ssn", "123-45-6789"),
        ("my social security number is 123456789", "ssn", "123456789"),
        ("+49 (0)30 901820 or", "phone", "+49 (0)30 901820"),
        ("(415) 555-2671", "phone", "(415) 555-2671"),
        ("415.555.2671x123", "phone", "415.555.2671x123"),
        ("at 020 7946 0958.", "phone", "020 7946 0958"),
        ("at 01 23 45 67 89", "phone", "01 23 45 67 89"),
        ("please call 450 0840", "phone", "450 0840"),
        ('{"phone": "72128827"}', "phone", "72128827"),
        ("电话13812345678", "phone", "13812345678"),
        ("my tax id 123 456 782", "national_id", "123 456 782"),
        ("NHS number 943 476 5870", "national_id", "943 476 5870"),
        ("call 943 476 5870", "phone", "943 476 5870"),
        ("cpf:390.533.447-05", "national_id", "390.533.447-05"),
        ("Passport: X1234567", "passport", "X1234567"),
        ("my driver's license is D123-4567-8901", "driver_license", "D123-4567-8901"),
        ("account number 000123456789", "bank_account", "000123456789"),
        ("passport X1234567, phone 5550123", "passport", "X1234567"),
        ("line\\n4111111111111111", "card", "4111111111111111"),
    ],
)
def test_what_is_a_number_of_somebody(text: str, kind: str, value: str) -> None:
    assert found(text) == (kind, value)


@pytest.mark.parametrize(
    "text",
    [
        "4111 1111 1111 1112", "0000 0000 0000 0000", "GB29 NWBK 6016 1331 9268 18", "1639322394369",
        "2023-04-06 13:24:14.372", "01.02.2023 10:30", "[1:16] # 1234567890123456789012",
        "da39a3ee5e6b4b0d3255bfef95601890afd80709", "123e4567-e89b-12d3-a456-426614174000",
        "0x0240ef2c3a528120", "order 12345678", "v10.0.19041.3636", "3.14159 26535 89793",
        "0.123 0.456 0.789", "part A30-8248082-Y", "the years 1998 1999 2000 2001", "44051401359",
        "user_id=9434765870", "1,234,567,890", "555-0123",
    ],
)  # fmt: skip
def test_what_is_not(text: str) -> None:
    assert found(text) == ("", "")


def test_other_kinds_are_left_alone() -> None:
    assert search("card 4111 1111 1111 1111", 0, {"phone"}) is None
