from __future__ import annotations

import random
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from guardrails.checks.personal_data.patterns import KINDS, PatternFinder
from tests.guardrails.checks.personal_data.phone_samples import samples
from tests.guardrails.checks.personal_data.technical_lines import LINES, lines
from tests.guardrails.scan.test_scanner import CUTS, restored

PIECES = [
    "555-123-4567", "555.123.4567", "(02) 9876 5432", "0151 29999999", "13812345678", "98765 43210",
    "+49 30 901820", "01.23.45.67.89", "tel ", "Tel.: ", "call me at ", "电话", "order ", "id: ",
    "my number is ",
    "x8487", " x12", " ext. 12", ", extension 3456", " ext", " e", "e", "x", " Durchwahl", "_", "-", ".", "#",
    "/", "(", ")", "0", "00", "12 ", "\n", " and ", ": ", "homePhone=", "call_id=", "是我的", "٠٥٥ ١٢٣",
    "\u2011",
]  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=10).map("".join)


def found(text: str) -> list[str]:
    return [text[span.start : span.end] for span in PatternFinder(KINDS).spans(text) if span.kind == "phone"]


@settings(max_examples=400, deadline=None)
@given(TEXTS, CUTS)
@example("555-123-4567 ext 555-1", [20, 21])
@example("tel 555-123-4567, extension 3456_", [14, 22, 29, 32])
def test_cuts_change_nothing(text: str, cuts: list[int]) -> None:
    assert restored(text, cuts) == restored(text, [])


def test_every_cut_into_two_changes_nothing() -> None:
    draw = random.Random(3)
    for _ in range(60):
        text = "".join(draw.choices(PIECES, k=7))
        whole = restored(text, [])
        assert {restored(text, [cut]) for cut in range(len(text))} <= {whole}


def test_numbers_of_twenty_countries_are_found_in_sentences_of_sixteen_languages() -> None:
    """Each value as a whole."""
    missed = [sample for sample in samples(seed=11, count=600) if found(sample.text) != [sample.number]]
    assert len(missed) <= 6, missed


def test_technical_lines_are_not_flagged() -> None:
    """At most 1 %, by any pattern."""
    finder = PatternFinder(KINDS)
    flagged = [line for line in lines(seed=11, repeats=3) if list(finder.spans(line))]
    assert len(flagged) <= len(LINES) * 3 // 100, flagged


@pytest.mark.parametrize(
    "text",
    [
        "12 " * 7000, "1-2 3.4/5(6)7 " * 1400, "0 " * 10_000, "555-123-4567 ext " * 1200, "+1 " * 6800,
        "call 123 " * 2200, "(" * 20_000 + "1", "1x" * 10_000, "012 345 " * 2500, "0" * 20_000,
        "电话1234 " * 2500, "tel 1-" * 3300,
    ],
)  # fmt: skip
def test_hostile_text_costs_linear_time(text: str) -> None:
    """Twice the text takes about twice the time; by CPU time, so that other work does not count."""
    finder = PatternFinder(KINDS)
    seconds = []
    for size in (10_000, 20_000):
        began = time.process_time()
        list(finder.spans(text[:size]))
        seconds.append(time.process_time() - began)
    assert seconds[1] < 4 * seconds[0] + 0.02


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Dial (570) 234-8812x8487 for the desk", "(570) 234-8812x8487"),
        ("reach the lab: 415.867.5309, ext. 12", "415.867.5309, ext. 12"),
        ("020 7946 0958 extension 4021.", "020 7946 0958 extension 4021"),
        ("mein Handy: 0049 171 5550123", "0049 171 5550123"),
        ("Zentrale 030/901820-4 oder Durchwahl", "030/901820-4"),
        ("Fax 0721 608 0 x", "0721 608 0"),
        ("001-570-234-8812x12", "001-570-234-8812x12"),
        ("my number is 570-234-8812", "570-234-8812"),
        ("please text me on 5702348812", "5702348812"),
        ("Ann's new number is 98765 43210", "98765 43210"),
        ("phone_570-234-8812_home", "570-234-8812"),
        ("_+49 171 5550123_", "+49 171 5550123"),
        ("**(570) 234-8812**", "(570) 234-8812"),
        ('{"contact": {"mobilePhone": "612345678"}}', "612345678"),
        ("customer_phone=72128827&x=1", "72128827"),
        ("WhatsApp 11 98765-4321", "11 98765-4321"),
        ("ligue para (21) 2345-6789", "(21) 2345-6789"),
        ("mój telefon 601 234 567", "601 234 567"),
        ("mobilnummer 41 23 45 67", "41 23 45 67"),
        ("kännykkä, puh. 040 1234567", "040 1234567"),
        ("Volejte 731 234 567 kdykoli", "731 234 567"),
        ("τηλέφωνο 210 3456789", "210 3456789"),
        ("мой тел. 8 (912) 345-67-89", "8 (912) 345-67-89"),
        ("Позвоните: 89123456789", "89123456789"),
        ("ТЕЛЕФОН 495 123 45 67", "495 123 45 67"),
        ("手机13912345678收到短信", "13912345678"),
        ("客户13912345678投诉", "13912345678"),
        ("電話番号03-3456-7890です", "03-3456-7890"),
        ("휴대폰은 010-2345-6789입니다", "010-2345-6789"),
        ("मेरा फोन ९८७६५ ४३२१० है", "९८७६५ ४३२१०"),
        ("هاتفي ٠٥٠ ١٢٣ ٤٥٦٧", "٠٥٠ ١٢٣ ٤٥٦٧"),
        ("נייד 050-1234567", "050-1234567"),
        ("โทร 081-234-5678", "081-234-5678"),
        ("điện thoại 0912 345 678", "0912 345 678"),
        ("Call 570\u2011234\u20118812", "570\u2011234\u20118812"),
        (
            "Tel.\u00a0+33\u00a06\u00a012\u00a034\u00a056\u00a078",
            "+33\u00a06\u00a012\u00a034\u00a056\u00a078",
        ),
        ("Tel：（02）2345-6789", "（02）2345-6789"),
        ("Jo Lee\nOak Street 5\n046 406 6044 office", "046 406 6044"),
        ("zip 90210 (570) 234-8812", "(570) 234-8812"),
        ("((570)234-8812)", "(570)234-8812"),
        ("line\\n570-234-8812", "570-234-8812"),
        ("+1 (570) 234-8812", "+1 (570) 234-8812"),
        ("order 12345678, phone 570-234-8812", "570-234-8812"),
        ("x" * 5000 + " tel 570 234 8812", "570 234 8812"),
    ],
)
def test_what_is_a_phone_number(text: str, number: str) -> None:
    assert found(text) == [number]


@pytest.mark.parametrize(
    "text",
    [
        "", "+", "tel", "tel: ", "phone 12345", "+0123456789", "order 570-234-8812",
        "Bestellnummer 0151 29999999",
        "call_id: 1234567890", "phone_id=123456789", "id: 250395034", "MATCH (n) WHERE id(n) = 250395034",
        "I0325 13:14:15.372123 12345 a.cc:9]", "03-17 16:14:02.148  2227 I PhoneStatusBar: val=40000500",
        "081109 203615 148 INFO dfs", "progress is : 0.19211523", "EAN 4006381333931", "5901234123457",
        "call me in 2024-05-06 12:30", "call at 1700000000", "mobile revenue of $ 1234567", "tel 10.20.30.40",
        "Phone price 1.234.567", "part number 0151 299 9999", "订单号13912345678", "#1234567890 call back",
        "f(12345678)", "sendSms() returned 201478902", "blk_7878121102358435702", "0.0 0.12 0.45 0.7 0.99",
        "01 02 03 04 05 06 07 08 09", "(1998) 1234-1240", "ISBN 0-306-40615-2", "0x0123456789", "v01.02.0345",
        "da39 0123 4567 8901", "3,141,592,653", "1998 1999 2000 2001", "x=012345678901", "12:34:56.789 1234",
    ],
)  # fmt: skip
def test_what_is_no_phone_number(text: str) -> None:
    assert found(text) == []
