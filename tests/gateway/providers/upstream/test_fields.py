from __future__ import annotations

from gateway.providers.upstream.fields import field_rules
from gateway.requests.field_support import CHAT, HONOURED


def test_every_field_of_a_chat_has_a_rule() -> None:
    rules = field_rules("Example's API")
    assert rules.keys() == CHAT.keys()
    assert rules["model"] == HONOURED and rules["prediction"].verdict == "ignored"


def test_a_field_that_the_api_lacks_is_refused_by_its_name_but_for_harmless_values() -> None:
    rule = field_rules("Example's API")["n"]
    assert (rule.verdict, rule.harmless) == ("refused", (1,)) and "Example's API" in rule.note


def test_an_api_may_honour_more() -> None:
    assert field_rules("Example's API", ["logprobs"])["logprobs"] == HONOURED
