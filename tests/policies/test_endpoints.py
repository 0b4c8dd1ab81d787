from __future__ import annotations

from policies.endpoints import ENDPOINTS, own_prefixes
from policies.variables import VARIABLES


def test_paths_belong_to_one_endpoint() -> None:
    paths = [path for each in ENDPOINTS.values() for path in each.paths]
    assert len(paths) == len(set(paths))
    assert all(path.startswith("/") and not path.endswith("/") for path in paths)


def test_prefixes_cover_what_passthrough_may_not_take() -> None:
    assert set(own_prefixes()) == {
        "/v1/chat", "/v1/responses", "/v1/messages", "/v1/completions", "/v1/embeddings"
    }  # fmt: skip


def test_conditions_name_every_endpoint() -> None:
    assert all(f"`{name}`" in VARIABLES["request.endpoint"].meaning for name in ENDPOINTS)
