"""Phone numbers of many countries in sentences of many languages, drawn at random."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import NamedTuple

FORMATS = {
    "us": ["(2NN) 5NN-NNNN", "2NN-5NN-NNNN", "2NN.5NN.NNNN", "+1 2NN 5NN NNNN", "1-2NN-5NN-NNNN",
           "2NN5NNNNNN", "2NN-5NN-NNNNxNNNN", "(2NN) 5NN-NNNN ext. NN", "+1 (2NN) 5NN-NNNN x NNN"],
    "gb": ["020 7NNN NNNN", "07NNN NNNNNN", "+44 20 7NNN NNNN", "0161 4NN NNNN", "+44 (0)7NNN NNN NNN"],
    "de": ["030 NNNNNNN", "0151 2NNNNNNN", "+49 89 NNNNNN", "089/NNNNNN", "0221-NNNNNNN", "0049 30 NNNNNN",
           "0049 171 NNNNNNN"],
    "fr": ["06 1N NN NN NN", "01.4N.NN.NN.NN", "+33 6 1N NN NN NN", "061NNNNNNN"],
    "es": ["6NN NN NN NN", "91N NNN NNN", "+34 6NN NNN NNN", "6NNNNNNNN"],
    "it": ["06 69NN NNNN", "34N NNN NNNN", "+39 34N NNNNNNN", "02-48NNNNNN"],
    "br": ["(11) 9NNNN-NNNN", "(21) 2NNN-NNNN", "+55 11 9NNNN-NNNN", "11 9NNNN NNNN"],
    "mx": ["55 1NNN NNNN", "(33) 3NNN NNNN", "+52 55 1NNN NNNN"],
    "pl": ["5NN NNN NNN", "22 6NN NN NN", "+48 5NN NNN NNN"],
    "ru": ["8 (912) NNN-NN-NN", "+7 912 NNN-NN-NN", "8 912 NNN NN NN", "8912NNNNNNN"],
    "tr": ["0532 NNN NN NN", "0 (532) NNN NN NN", "+90 532 NNN NN NN"],
    "cn": ["13NNNNNNNNN", "138 NNNN NNNN", "010-6NNNNNNN", "+86 139 NNNN NNNN"],
    "jp": ["03-3NNN-NNNN", "090-1NNN-NNNN", "+81 90-1NNN-NNNN"],
    "kr": ["010-2NNN-NNNN", "02-5NN-NNNN", "+82 10-2NNN-NNNN"],
    "in": ["98NNN NNNNN", "98NNNNNNNN", "+91 98NNN NNNNN", "080-2NNN NNNN", "098NN NNNNNN"],
    "ae": ["050 1NN NNNN", "04 3NN NNNN", "+971 50 1NN NNNN"],
    "au": ["04NN NNN NNN", "(02) 9NNN NNNN", "+61 4NN NNN NNN"],
    "nl": ["06-1NNNNNNN", "020 6NN NNNN", "+31 6 1NNNNNNN"],
    "se": ["070-1NN NN NN", "08-5NN NN NN", "+46 70 1NN NN NN"],
    "id": ["0812-3NNN-NNNN", "021-5NNNNNN", "+62 812 3NNN NNNN"],
}  # fmt: skip
"""By country; N is any digit."""

SENTENCES = {
    "en": ["Tel: @", "You can phone me on @ after six.", "My new number is @, please save it.",
           "Cell @ (evenings)", "For anything urgent just call @.", '{"name": "Ann", "homePhone": "@"}',
           "mobile_number=@"],
    "de": ["Telefon: @", "Meine Handynummer lautet @.", "Erreichbar unter Tel. @", "Mobil: @"],
    "fr": ["Téléphone : @", "Mon portable, c'est le @.", "Tél. @", "Vous pouvez me joindre au @."],
    "es": ["Teléfono: @", "Mi móvil es el @.", "Puedes llamarme al celular @", "Contacto: @"],
    "it": ["Telefono: @", "Il mio cellulare è @.", "Tel. @"],
    "pt": ["Telefone: @", "Meu celular é @.", "Pode ligar para @.", "WhatsApp: @"],
    "pl": ["Telefon: @", "Mój numer to @.", "tel. kom. @"],
    "ru": ["Телефон: @", "Мой мобильный @.", "тел. @", "Звоните по номеру @"],
    "tr": ["Telefon: @", "Telefon numaram @.", "Tel @"],
    "zh": ["电话：@", "我的手机号是@，随时联系。", "请拨打@", "聯絡電話 @"],
    "ja": ["電話番号は@です。", "TEL：@", "携帯：@"],
    "ko": ["전화번호는 @입니다.", "휴대폰: @", "연락처 @"],
    "hi": ["फ़ोन: @", "मेरा मोबाइल नंबर @ है।", "संपर्क करें: @"],
    "ar": ["هاتف: @", "رقم الجوال @", "رقم هاتفي @"],
    "nl": ["Telefoon: @", "Mijn mobiel is @.", "Bel me op @"],
    "sv": ["Telefon: @", "Mitt mobilnummer är @.", "Tel @"],
}  # fmt: skip
"""By language; @ stands for the number."""


class Sample(NamedTuple):
    """A text and its number."""

    text: str
    number: str
    country: str
    language: str


def samples(seed: int, count: int) -> Iterator[Sample]:
    """Each country and language in turn."""
    draw = random.Random(seed)
    countries, languages = list(FORMATS), list(SENTENCES)
    for number in range(count):
        country, language = countries[number % len(countries)], draw.choice(languages)
        value = re.sub("N", lambda _: draw.choice("0123456789"), draw.choice(FORMATS[country]))
        yield Sample(draw.choice(SENTENCES[language]).replace("@", value), value, country, language)
