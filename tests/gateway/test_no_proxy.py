from __future__ import annotations

import pytest

from gateway.no_proxy import is_unproxied


@pytest.mark.parametrize(
    ("no_proxy", "is_named"),
    [
        ("", False),
        ("*", True),
        ("other.test, api.test", True),
        (".test", True),
        ("*.test", True),
        ("est", False),
        ("API.TEST:443", True),
        ("api.test:80", False),
        ("10.0.0.0/8", False),
    ],
)
def test_a_host_is_named_by_itself_its_domain_or_its_port(no_proxy: str, is_named: bool) -> None:
    assert is_unproxied("api.test", 443, no_proxy) is is_named


@pytest.mark.parametrize(
    ("host", "no_proxy", "is_named"),
    [
        ("10.1.2.3", "10.0.0.0/8", True),
        ("11.1.2.3", "10.0.0.0/8", False),
        ("::1", "[::1]:443", True),
        ("::1", "[::1]:80", False),
    ],
)
def test_an_address_is_named_by_its_network(host: str, no_proxy: str, is_named: bool) -> None:
    assert is_unproxied(host, 443, no_proxy) is is_named
