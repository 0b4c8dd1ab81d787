"""Public example numbers count; with another last character nearly all do not."""

from __future__ import annotations

import pytest

from guardrails.checks.personal_data.national_ids import NATIONAL_IDS, SHAPES

EXAMPLES = {
    "ar_cuit": "20-05536168-2", "au_abn": "83 914 571 673", "au_medicare": "2123 45670 1",
    "au_tfn": "123 456 782", "be_nn": "85.07.30-033.28", "bg_egn": "7523169263", "br_cpf": "390.533.447-05",
    "ca_sin": "123-456-782", "ch_ahv": "756.9217.0769.85", "cl_rut": "12.531.909-2",
    "cn_resident": "11010519491231002X", "cz_rc": "710319/2745", "de_idnr": "36 574 261 809",
    "dk_cpr": "211062-5629", "ee_ik": "36805280109", "es_nif": "54362315K", "fi_hetu": "131052-308T",
    "fr_nir": "2 95 10 99 126 111 93", "gb_nhs": "943 476 5870", "gb_nino": "AB 12 34 56 C",
    "gr_amka": "01013099997", "hr_oib": "33392005961", "ie_pps": "6433435F", "il_id": "039337423",
    "in_aadhaar": "2341 2341 2346", "in_pan": "ACUPA7085R", "it_codice_fiscale": "RCCMNL83S18D969H",
    "jp_my_number": "123456789018", "kr_rrn": "971013-1019902", "mx_curp": "BOXW310820HNERXN09",
    "nl_bsn": "111222333", "no_fodselsnummer": "151086 95088", "pl_pesel": "44051401359",
    "pt_nif": "501964843", "ro_cnp": "1630615123457", "se_personnummer": "880320-0016",
    "sg_nric": "S1234567D", "th_id": "1-2345-45678-78-1", "tr_tckn": "17291716060", "us_itin": "912-90-3456",
    "za_id": "7503305044089",
}  # fmt: skip


def is_valid(name: str, text: str) -> bool:
    shape = "".join("9" if char.isdigit() else "A" if char.isalpha() else char for char in text)
    compact = "".join(filter(str.isalnum, text))
    return any(national_id.check(compact) for national_id, _ in SHAPES[shape] if national_id.name == name)


@pytest.mark.parametrize("name", [national_id.name for national_id in NATIONAL_IDS])
def test_the_last_character_follows_from_the_others(name: str) -> None:
    text = EXAMPLES[name]
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if text[-1].isalpha() else "0123456789"
    valid = [char for char in letters if is_valid(name, text[:-1] + char)]
    assert text[-1] in valid
    assert len(valid) == 1 or name in {
        "au_medicare",
        "dk_cpr",
        "gb_nino",
        "in_pan",
        "kr_rrn",
        "mx_curp",
        "us_itin",
    }
