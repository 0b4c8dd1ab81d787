"""Words before a number that say what it is."""

from __future__ import annotations

import re

_BETWEEN_PARTS = re.compile(r"_+|(?<=[a-z])(?=[A-Z])")  # of `homePhone`, `call_id`
_TAILS = frozenset("number numbers no num nr nbr value val home work office main raw str".split())
_ANNOUNCE = {
    "phone": "phone phones phonenumber phoneno telephone telephones ph tel tels tél tlf tlfn tfno mob"
    " mobile mobiles mobil mobiel móvil movil móviles handy cell cellphone cellular cel celular celulares"
    " cellulare telemóvel telemovel portable portatile gsm fax"
    " faks whatsapp viber sms voicemail hotline landline fon"
    " festnetz rufnummer mobilnummer komórka komórkowy puh puhelin thoại sđt sdt no_hp nomor_hp hp_saya"
    " call_me call_us call_him call_her reach_me reach_us text_me text_us ring_me contact_me contact_us"
    " my_number his_number her_number our_number their_number your_number new_number meine_nummer mon_numéro"
    " mi_número mio_numero meu_número mój_numer",
    "calls": "call calls called calling reach dial dialed ring contact contacts text message_to messages_to"
    " answering appelez appeler appelle joindre contactez contacter llame llama llamar llámame llámanos"
    " llámeme contacto contactar anrufen anruf rufen erreichen erreichbar rückruf kontakt chiama chiamare"
    " chiamami chiamaci contatto contattare ligue ligar liga contato bel bellen dzwoń dzwonić zadzwoń"
    " zadzwonić ringa kontakta volejte zavolejte volat gọi liên_hệ hubungi telpon arayın",
    "card": "card cards visa mastercard amex",
    "passport": "passport pasaporte passeport",
    "driver_license": "driver_license drivers_license s_license driving_license driver_licence"
    " driving_licence s_licence dl_number dl_no",
    "bank_account": "bank_account checking_account savings_account account_number account_no acct routing"
    " aba bsb sort_code",
    "ssn": "ssn social_security",
    "national_id": "national personal identity identification citizen resident tax taxpayer fiscal health"
    " medicare insurance social government my_id id_card identity_card id_number id_no id_code id_is"
    " national_id tax_id personal_id citizen_id nhs pesel aadhaar aadhar uidai tfn abn nino nir sécu"
    " sécurité secu securite sociale idnr cpf rut cuil cuit bsn cpr sin tckn kimlik cnp nif nie dni"
    " contribuinte pps teudat codice cédula cedula curp ahv avs amka oib egn isikukood asmens",
    "other": "order orders ref reference ticket invoice part parts sku isbn issn ean upc gtin asin serial"
    " version build pid port tracking booking article item product model code codes zip postcode plz cep"
    " timestamp epoch offset size bytes uid uuid hash commit batch lot catalog barcode doi id ids revision"
    " rev seq sequence session transaction txn request req trace span node block row key index imei iccid"
    " vin process thread count pmid sn pn po rma incident case patent lat lon latitude longitude",
}
_KINDS = {words.replace("_", " "): kind for kind, text in _ANNOUNCE.items() for words in text.split()}
_BEGINNINGS = re.compile(
    r"(?P<phone>t[eé]l[eé](?:f|ph)|handyn|mobiln|mobilt)|(?P<bank_account>konto)|(?P<passport>reise)"
    r"|(?P<national_id>steue|ident|burge|perso|fodse|fødse|rijks)"
    r"|(?P<other>bestell|rechnungs|artikel|auftrags|kundennu|comman|factur|pedido|ordin|fattur|zamów)"
)
_WORD = re.compile(  # of Latin letters, or a part of one in scripts whose words run together or are inflected
    r"(?i)(?P<phone>телеф|мобил|\b(?:тел|моб|сот)\b|факс|τηλ|κινητ|电话|電話|手机|手機|携帯|휴대|핸드폰|전화|연락처"
    r"|هاتف|جوال|موبايل|تليفون|تلفن|फ़ोन|फ़ोन|फोन|मोबाइल|טלפון|נייד|โทร|มือถือ|ফোন|মোবাইল|热线|熱線)"
    r"|(?P<calls>звон|набер|связ|拨打|撥打|致电|致電|联系|聯絡|聯繫|連絡|연락|اتصل|تواصل|संपर्क|कॉल|ติดต่อ|התקשר|咨询)"
    r"|(?P<other>заказ|сч[её]т|артикул|订单|訂單|编号|編號|单号|單號|注文|주문|송장|快递|条码|型号)"
    r"|(?P<word>[A-Za-z_\u00c0-\u024f\u1e00-\u1eff]++(?!\())"
)
_LETTER = re.compile(r"[^\W\d]|[^\x00-\x7f]")
_NEAR_CHARS = 16
"""How far before a number a word may stand that says what other number it is."""
_CLAUSE = re.compile(r"[,;\n0-9]")


def announced_kinds(before: str) -> list[str]:
    """The kinds that the words of a text announce, the nearest last.

    A verb such as `call` announces `calls`, a word such as `order` or `id` right before the number `other`.
    """
    found: list[str] = []
    if not _LETTER.search(before):
        return found
    previous = ""
    for match in _WORD.finditer(before):
        kind = match.lastgroup
        if kind == "word":
            kind, previous = _kind_of(match.group(), previous)
        gap = before[match.end() :]
        if kind is not None and not (kind == "other" and (len(gap) > _NEAR_CHARS or _CLAUSE.search(gap))):
            found.append(kind)
    return found


def _kind_of(word: str, previous: str) -> tuple[str | None, str]:
    """What a word or an identifier announces, and its last part, which counts with the next word."""
    whole = word.lower()
    parts = _BETWEEN_PARTS.sub(" ", word).lower().split() or [""]
    if len(parts) == 1 or whole in _KINDS:
        return _KINDS.get(f"{previous} {whole}") or _KINDS.get(whole) or _kind_of_beginning(whole), whole
    if parts[-1] in _TAILS and " ".join(parts[-2:]) not in _KINDS:
        parts.pop()
    last = parts[-1]
    kind = _KINDS.get(" ".join(parts[-2:])) or _KINDS.get(last) or _kind_of_beginning(last)
    return None if kind == "calls" else kind, last


def _kind_of_beginning(word: str) -> str | None:
    match = _BEGINNINGS.match(word)
    return None if match is None else match.lastgroup
