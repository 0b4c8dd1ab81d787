from __future__ import annotations

import pytest

from gateway.errors import InvalidRequest
from gateway.response_cache.directives import CacheDirectives, read_directives


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", CacheDirectives()),
        ("no-cache", CacheDirectives(may_read=False)),
        ("refresh", CacheDirectives(may_read=False)),
        ("no-store", CacheDirectives(may_read=False, may_write=False)),
        ("only", CacheDirectives(may_write=False, is_only_cached=True)),
        ("max-age=60", CacheDirectives(max_age_s=60.0)),
        ("No-Cache , MAX-AGE=0", CacheDirectives(may_read=False, max_age_s=0.0)),
    ],
)
def test_directives(text: str, expected: CacheDirectives) -> None:
    assert read_directives(text, "") == expected


def test_cache_control_counts_where_the_own_header_is_missing() -> None:
    assert read_directives("", "only-if-cached, max-age=5") == CacheDirectives(
        may_write=False, is_only_cached=True, max_age_s=5.0
    )
    assert read_directives("no-store", "max-age=5") == CacheDirectives(may_read=False, may_write=False)


def test_unknown_words_are_ignored_in_http_and_refused_in_ours() -> None:
    assert read_directives("", "private, max-stale=3, x") == CacheDirectives()
    for text in ("of", "max-age=-1", "max-age=soon", "no-cache, sure"):
        with pytest.raises(InvalidRequest, match="x-penstock-cache"):
            read_directives(text, "")


def test_metadata_only_tightens_the_header() -> None:
    given = {"penstock-cache": "no-store, max-age=9", "other": "x"}
    both = read_directives("only, max-age=5", "", given)
    assert both == CacheDirectives(may_read=False, may_write=False, is_only_cached=True, max_age_s=5.0)
    assert read_directives("", "", given) == CacheDirectives(may_read=False, may_write=False, max_age_s=9.0)
    with pytest.raises(InvalidRequest) as refused:
        read_directives("", "", {"penstock-cache": "please"})
    assert refused.value.param == "metadata.penstock-cache"
