from __future__ import annotations

import pytest

from gateway.auth import ANONYMOUS, KeyRing
from gateway.errors import Unauthorized


def test_without_keys_every_caller_is_anonymous() -> None:
    ring = KeyRing([])
    assert ring.is_open
    assert ring.identify("") is ANONYMOUS
    assert ring.identify("Bearer whatever") is ANONYMOUS


def test_each_key_is_a_tenant_of_its_own() -> None:
    ring = KeyRing(["sk-one", "sk-two", "sk-one"])
    one, two = ring.identify("Bearer sk-one"), ring.identify("bearer  sk-two ")
    assert not ring.is_open
    assert one == ring.identify("Bearer sk-one")
    assert len({one.tenant, two.tenant}) == len({one.tenant_salt, two.tenant_salt}) == 2


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Basic sk-one", "sk-one", "Bearer sk-on", "Bearer sk-one2", "Bearer é"],
)
def test_anything_else_is_refused_without_a_hint(header: str) -> None:
    with pytest.raises(Unauthorized) as refused:
        KeyRing(["sk-one"]).identify(header)
    assert "sk-on" not in str(refused.value)
    assert refused.value.headers == {"www-authenticate": "Bearer"}


def test_the_key_itself_is_not_kept() -> None:
    ring = KeyRing(["sk-secret"])
    assert "sk-secret" not in repr(vars(ring)) + repr(ring.identify("Bearer sk-secret"))
