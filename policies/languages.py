"""The languages that an encoder can be declared to read: the codes of ISO 639-1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any

from msgspec import Meta

from policies.convert import KeyPath
from policies.errors import Place, Problem

LanguageCode = Annotated[str, Meta(min_length=1, max_length=32)]
"""Checked by `language_problems`, which knows the names of languages too."""

_TABLE = """
aa Afar|ab Abkhazian|ae Avestan|af Afrikaans|ak Akan|am Amharic|an Aragonese|ar Arabic|as Assamese|av Avaric
ay Aymara|az Azerbaijani|ba Bashkir|be Belarusian|bg Bulgarian|bi Bislama|bm Bambara|bn Bengali|bo Tibetan
br Breton|bs Bosnian|ca Catalan|ce Chechen|ch Chamorro|co Corsican|cr Cree|cs Czech|cu Church Slavic
cv Chuvash|cy Welsh|da Danish|de German|dv Dhivehi|dz Dzongkha|ee Ewe|el Greek|en English|eo Esperanto
es Spanish|et Estonian|eu Basque|fa Persian|ff Fulah|fi Finnish|fj Fijian|fo Faroese|fr French
fy Western Frisian|ga Irish|gd Gaelic|gl Galician|gn Guarani|gu Gujarati|gv Manx|ha Hausa|he Hebrew|hi Hindi
ho Hiri Motu|hr Croatian|ht Haitian|hu Hungarian|hy Armenian|hz Herero|ia Interlingua|id Indonesian
ie Interlingue|ig Igbo|ii Sichuan Yi|ik Inupiaq|io Ido|is Icelandic|it Italian|iu Inuktitut|ja Japanese
jv Javanese|ka Georgian|kg Kongo|ki Kikuyu|kj Kuanyama|kk Kazakh|kl Kalaallisut|km Khmer|kn Kannada|ko Korean
kr Kanuri|ks Kashmiri|ku Kurdish|kv Komi|kw Cornish|ky Kyrgyz|la Latin|lb Luxembourgish|lg Ganda|li Limburgish
ln Lingala|lo Lao|lt Lithuanian|lu Luba-Katanga|lv Latvian|mg Malagasy|mh Marshallese|mi Maori|mk Macedonian
ml Malayalam|mn Mongolian|mr Marathi|ms Malay|mt Maltese|my Burmese|na Nauru|nb Norwegian Bokmal
nd North Ndebele|ne Nepali|ng Ndonga|nl Dutch|nn Norwegian Nynorsk|no Norwegian|nr South Ndebele|nv Navajo
ny Chichewa|oc Occitan|oj Ojibwa|om Oromo|or Oriya|os Ossetian|pa Punjabi|pi Pali|pl Polish|ps Pashto
pt Portuguese|qu Quechua|rm Romansh|rn Rundi|ro Romanian|ru Russian|rw Kinyarwanda|sa Sanskrit|sc Sardinian
sd Sindhi|se Northern Sami|sg Sango|si Sinhala|sk Slovak|sl Slovenian|sm Samoan|sn Shona|so Somali|sq Albanian
sr Serbian|ss Swati|st Southern Sotho|su Sundanese|sv Swedish|sw Swahili|ta Tamil|te Telugu|tg Tajik|th Thai
ti Tigrinya|tk Turkmen|tl Tagalog|tn Tswana|to Tonga|tr Turkish|ts Tsonga|tt Tatar|tw Twi|ty Tahitian
ug Uyghur|uk Ukrainian|ur Urdu|uz Uzbek|ve Venda|vi Vietnamese|vo Volapuk|wa Walloon|wo Wolof|xh Xhosa
yi Yiddish|yo Yoruba|za Zhuang|zh Chinese|zu Zulu
"""

LANGUAGES: Mapping[str, str] = dict(
    (entry[:2], entry[3:]) for line in _TABLE.split("\n") for entry in line.split("|") if entry
)
"""English names by code."""


def language_problems(sections: Mapping[str, Any], places: Mapping[KeyPath, Place]) -> Iterator[Problem]:
    """Codes that are none, and those given twice."""
    for name, entry in sections["models"].items():
        encoder = (entry or {}).get("encoder") or {}
        path = ("models", name, "encoder", "languages")
        codes = [code for code in encoder.get("languages") or [] if code is not None]
        for code in codes:
            if code not in LANGUAGES:
                message = f"{'.'.join(path)} holds {code!r}, no code of ISO 639-1{language_hint(code)}"
                yield Problem(places[path], message)
        for code in sorted({code for code in codes if codes.count(code) > 1}):
            yield Problem(places[path], f"{'.'.join(path)} holds {code!r} twice; remove one")


def language_hint(code: str) -> str:
    """The nearest code, by code or by name."""
    by_name = {name.lower(): code for code, name in LANGUAGES.items()}
    lower = code.lower()
    short = lower.replace("_", "-").partition("-")[0]
    near = get_close_matches(lower, by_name, n=1, cutoff=0.6)
    found = short if short in LANGUAGES else by_name[near[0]] if near else code[:2]
    known = LANGUAGES.get(found)
    return f"; did you mean {found!r} ({known})?" if known else ", such as en, de or zh"
