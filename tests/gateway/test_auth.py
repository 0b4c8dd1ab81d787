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


def test_keys_of_one_tenant_share_its_name_and_cache() -> None:
    alone = [KeyRing(["sk-one", "sk-two"]).identify(f"Bearer sk-{each}") for each in ("one", "two")]
    ring = KeyRing(["sk-one", "sk-two", "sk-three"], {each.tenant: "research" for each in alone})
    first, second, third = (ring.identify(f"Bearer sk-{each}") for each in ("one", "two", "three"))
    assert first.tenant == second.tenant == "research" and first.tenant_salt == second.tenant_salt
    assert [first.key_id, second.key_id] == [each.key_id for each in alone]
    assert third.tenant.startswith("key-") and third.tenant_salt != first.tenant_salt
    assert ring.principal_of("research") == ring.principal_of("research", "revoked") == first
    assert ring.principal_of("research", second.key_id) == second
