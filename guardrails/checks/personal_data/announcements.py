"""Words before a number that say what it is."""

from __future__ import annotations

import re

_WORD = re.compile(r"[^\W\d]+")  # `call_id` is one word, and announces nothing
_ANNOUNCE = {
    "phone": "phone phones telephone tel mobile mobiles móvil movil handy cell cellphone celular"
    " call calls called calling fax whatsapp sms text reach dial ring contact answering"
    " hotline messages_to message_to téléphone telefone",
    "card": "card cards visa mastercard amex",
    "passport": "passport pasaporte passeport",
    "driver_license": "driver_license drivers_license s_license driving_license driver_licence"
    " driving_licence s_licence dl_number dl_no",
    "bank_account": "bank_account checking_account savings_account account_number account_no acct routing"
    " aba bsb sort_code",
    "ssn": "ssn social_security",
    "national_id": "national personal identity identification citizen resident tax taxpayer fiscal"
    " health medicare insurance social government my_id id_card identity_card id_number id_no id_code"
    " id_is nhs pesel aadhaar aadhar uidai tfn abn nino nir sécu sécurité secu securite"
    " sociale idnr cpf rut cuil cuit bsn cpr sin tckn kimlik cnp nif nie dni contribuinte"
    " pps my_number teudat codice cédula cedula curp ahv avs amka oib egn isikukood asmens",
}
_KINDS = {words.replace("_", " "): kind for kind, text in _ANNOUNCE.items() for words in text.split()}
_KINDS_OF_BEGINNINGS = {
    "telef": "phone", "phone": "phone", "konto": "bank_account", "reise": "passport", "steue": "national_id",
    "ident": "national_id", "burge": "national_id", "perso": "national_id",
    "fodse": "national_id", "fødse": "national_id", "rijks": "national_id",
}  # fmt: skip
"""By the first five letters: `telefono`, `kontonummer`."""


def announced_kinds(before: str) -> list[str]:
    """The kinds that the words of a text announce, the nearest last."""
    words = _WORD.findall(before.lower())
    found = []
    previous = ""
    for word in words:
        kind = _KINDS.get(f"{previous} {word}") or _KINDS.get(word) or _KINDS_OF_BEGINNINGS.get(word[:5])
        if kind is not None:
            found.append(kind)
        previous = word
    if previous == "id" and before.rstrip(" :").lower().endswith("id"):
        found.append("national_id")
    return found
