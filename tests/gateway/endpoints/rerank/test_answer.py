"""/v1/rerank over HTTP; only the vectors are scripted."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from typing import Any, cast

import httpx
import numpy as np
import pytest

from backend.errors import EngineUnavailable, QueueFull, RequestError
from backend.server.encoder_client import Embeddings, EncoderClient
from backend.server.encoder_messages import EncoderHello
from gateway.endpoints.rerank.answer import scores
from gateway.endpoints.rerank.request import MAX_DOCUMENTS
from gateway.providers.base import Provider
from gateway.providers.encoder import EncoderProvider
from gateway.providers.engine.provider import EngineProvider
from gateway.providers.upstream.openai import OpenAIProvider
from gateway.settings import Settings
from gateway.wiring.app import build_app
from policies.document import EncoderModel, ModelEntry, Policies
from policies.guardrails import GuardrailProfile, GuardrailsSection, PatternRules
from policies.passthrough import PassthroughRule
from policies.tenants import Limits, Tenant
from policies.upstream import UpstreamModel
from tests.gateway.conftest import MakeApp, http_client
from tests.gateway.providers.upstream.scripted_server import always, response, serving

PATH = "/v1/rerank"
QUERY = "capital of France"
PARIS, LYON, BREAD = "Paris", "Lyon", "how to bake bread"
VECTORS = {QUERY: (2, 0, 0), PARIS: (3, 0, 0), LYON: (1, 1, 0), BREAD: (-1, 0, 0), "empty": (0, 0, 0)}
DOCUMENTS = [BREAD, LYON, PARIS]
HALF = round(math.sqrt(0.5), 6)


class ScriptedClient:
    """In place of the encoder's client: the vectors of VECTORS, or an error."""

    def __init__(self) -> None:
        self.hello: EncoderHello | None = EncoderHello("minilm", "/none", max_tokens=256, dimensions=3)
        self.error: Exception | None = None
        self.inputs: Sequence[str | list[int]] = ()

    async def embed(self, inputs: list[str] | list[list[int]]) -> Embeddings:
        self.inputs = inputs
        if self.error is not None:
            raise self.error
        found = [VECTORS.get(cast(str, each), (0, 0, 1)) for each in inputs]
        return Embeddings([struct.pack("<3f", *each) for each in found], [4] * len(inputs))


@pytest.fixture
def scripted() -> ScriptedClient:
    return ScriptedClient()


@pytest.fixture
def http(make_app: MakeApp, scripted: ScriptedClient) -> httpx.AsyncClient:
    return http_client(make_app(EncoderProvider("ours", cast(EncoderClient, scripted))))


def body(**changes: object) -> dict[str, Any]:
    given = {"model": "ours", "query": QUERY, "documents": DOCUMENTS, **changes}
    return {name: value for name, value in given.items() if value is not ...}


async def test_the_best_comes_first(http: httpx.AsyncClient, scripted: ScriptedClient) -> None:
    answer = (await http.post(PATH, json=body())).json()
    assert scripted.inputs == [QUERY, *DOCUMENTS]
    assert answer.pop("id").startswith("rerank-")
    found = [
        (each["index"], round(each["relevance_score"], 6), each["document"]["text"])
        for each in answer.pop("results")
    ]
    assert found == [(2, 1, PARIS), (1, HALF, LYON), (0, -1, BREAD)]
    assert answer == {
        "object": "list",
        "model": "ours",
        "usage": {"prompt_tokens": 16, "total_tokens": 16},
        "meta": {"tokens": {"input_tokens": 16}},
    }


GOOD: list[tuple[dict[str, Any], list[int]]] = [
    ({}, [2, 1, 0]),
    ({"top_n": 1}, [2]),
    ({"top_n": 2}, [2, 1]),
    ({"top_n": 3}, [2, 1, 0]),
    ({"top_n": 4}, [2, 1, 0]),
    ({"top_n": 2**31 - 1}, [2, 1, 0]),
    ({"top_n": 2.0}, [2, 1]),
    ({"top_n": None}, [2, 1, 0]),
    ({"return_documents": None}, [2, 1, 0]),
    ({"user": "u"}, [2, 1, 0]),
    ({"documents": [PARIS]}, [0]),
    ({"documents": [PARIS, PARIS, LYON, PARIS]}, [0, 1, 3, 2]),
    ({"documents": [{"text": BREAD}, {"text": PARIS}]}, [1, 0]),
    ({"documents": [BREAD, {"text": PARIS}]}, [1, 0]),
    ({"documents": ["empty", PARIS, BREAD]}, [1, 0, 2]),
    ({"documents": ["😀", "\u202eabc", "\x00", "á" * 9]}, [0, 1, 2, 3]),
    ({"query": "empty"}, [0, 1, 2]),
    ({"query": "\n"}, [0, 1, 2]),
    ({"documents": [PARIS] * MAX_DOCUMENTS, "top_n": 2}, [0, 1]),
    ({"rank_fields": ["text"]}, [2, 1, 0]),
    ({"max_tokens_per_doc": None}, [2, 1, 0]),
    ({"return_embeddings": False, "priority": 0, "truncate_prompt_tokens": -1}, [2, 1, 0]),
]


@pytest.mark.parametrize(("changes", "indices"), GOOD)
async def test_odd_requests_that_are_answered(
    http: httpx.AsyncClient, changes: dict[str, Any], indices: list[int]
) -> None:
    answer = await http.post(PATH, json=body(**changes))
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    assert [each["index"] for each in results] == indices
    assert all(-1 <= each["relevance_score"] <= 1 for each in results)
    documents = changes.get("documents", DOCUMENTS)
    for each in results:
        given = documents[each["index"]]
        assert each["document"] == {"text": given if isinstance(given, str) else given["text"]}


async def test_documents_may_stay_away(http: httpx.AsyncClient) -> None:
    results = (await http.post(PATH, json=body(return_documents=False))).json()["results"]
    assert [[*each] for each in results] == [["index", "relevance_score"]] * 3


BAD: list[tuple[dict[str, Any], str]] = [
    ({"model": ...}, "model"),
    ({"model": ""}, "model"),
    ({"model": 5}, "model"),
    ({"query": ...}, "query"),
    ({"query": ""}, "query"),
    ({"query": None}, "query"),
    ({"query": ["a"]}, "query"),
    ({"query": {"text": "a"}}, "query"),
    ({"documents": ...}, "documents"),
    ({"documents": []}, "documents"),
    ({"documents": None}, "documents"),
    ({"documents": "a"}, "documents"),
    ({"documents": {"text": "a"}}, "documents"),
    ({"documents": [1]}, "documents[0]"),
    ({"documents": ["a", None]}, "documents[1]"),
    ({"documents": [["a"]]}, "documents[0]"),
    ({"documents": ["a", ""]}, "documents[1]"),
    ({"documents": ["a", {}]}, "documents[1].text"),
    ({"documents": ["a", {"text": 5}]}, "documents[1].text"),
    ({"documents": ["a", {"text": ""}]}, "documents[1]"),
    ({"documents": [{"text": "a", "id": 1}]}, "documents[0].id"),
    ({"documents": [{"image": "a"}]}, "documents[0]"),
    ({"documents": ["a"] * (MAX_DOCUMENTS + 1)}, "documents"),
    ({"top_n": 0}, "top_n"),
    ({"top_n": -1}, "top_n"),
    ({"top_n": 1.5}, "top_n"),
    ({"top_n": "2"}, "top_n"),
    ({"top_n": True}, "top_n"),
    ({"top_n": 2**31}, "top_n"),
    ({"return_documents": "yes"}, "return_documents"),
    ({"return_documents": 1}, "return_documents"),
    ({"rank_fields": ["title"]}, "rank_fields"),
    ({"max_tokens_per_doc": 4096}, "max_tokens_per_doc"),
    ({"max_chunks_per_doc": 10}, "max_chunks_per_doc"),
    ({"return_embeddings": True}, "return_embeddings"),
    ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
    ({"user": 5}, "user"),
    ({"topn": 1}, "topn"),
    ({"texts": ["a"]}, "texts"),
]


@pytest.mark.parametrize(("changes", "param"), BAD)
async def test_what_it_cannot_do_is_refused_by_name(
    http: httpx.AsyncClient, changes: dict[str, Any], param: str
) -> None:
    answer = await http.post(PATH, json=body(**changes))
    error = answer.json()["error"]
    assert answer.status_code == 400, answer.text
    assert error["param"].startswith(param) and error["type"] == "invalid_request_error" and error["message"]


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b"{", b"null", b'{"model": "ours", "query": "\\ud800", "documents": ["a"]}', b"\xff"],
)
async def test_bytes_that_are_no_request(http: httpx.AsyncClient, raw: bytes) -> None:
    answer = await http.post(PATH, content=raw, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and "message" in answer.json()["error"]


@pytest.mark.parametrize(
    ("message", "param", "shown"),
    [
        ("`input[0]` has 300 tokens; the model reads at most 256: split the text.", "query", "`query` has"),
        ("`input[3]` is not valid Unicode.", "documents[2]", "`documents[2]` is"),
        ("`input` has over 8000000 characters: send less.", "documents", "`documents` has"),
        ("something else", "documents", "something else"),
    ],
)
async def test_an_encoder_s_refusal_names_the_field(
    http: httpx.AsyncClient, scripted: ScriptedClient, message: str, param: str, shown: str
) -> None:
    scripted.error = RequestError(message, "input")
    answer = await http.post(PATH, json=body())
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert error["message"].startswith(shown) and "input" not in error["message"]


@pytest.mark.parametrize(
    ("error", "status"), [(QueueFull("full", 1.0), 429), (EngineUnavailable("gone"), 503)]
)
async def test_failures_of_the_encoder(
    http: httpx.AsyncClient, scripted: ScriptedClient, error: Exception, status: int
) -> None:
    scripted.error = error
    answer = await http.post(PATH, json=body())
    assert answer.status_code == status and "retry-after" in answer.headers


async def test_other_kinds_of_models_are_refused_by_name(make_app: MakeApp, provider: EngineProvider) -> None:
    for given in (provider, None):  # an engine, and one that nothing is known of
        async with http_client(make_app(given)) as http:
            answer = await http.post(PATH, json=body())
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "model_not_supported")
        assert "'ours' does not rank documents" in error["message"]


async def test_its_policy_may_ignore_unknown_fields(make_app: MakeApp, scripted: ScriptedClient) -> None:
    encoder = EncoderProvider("ours", cast(EncoderClient, scripted), "ignore")
    documents = [{"text": PARIS, "id": number} for number in range(100)]
    async with http_client(make_app(encoder)) as http:
        answer = await http.post(PATH, json=body(documents=documents, zz=1))
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-penstock-ignored-fields"] == "documents.id, zz"


def make(
    scripted: ScriptedClient,
    name: str = "",
    provider: Provider | None = None,
    **sections: Any,  # noqa: ANN401
) -> httpx.AsyncClient:
    policies = Policies(
        models={
            "ours": ModelEntry(encoder=EncoderModel(checkpoint="/none")),
            "theirs": ModelEntry(upstream=UpstreamModel(base_url="http://127.0.0.1:1/v1")),
        },
        **sections,
    )
    given: dict[str, Provider] = {"ours": EncoderProvider("ours", cast(EncoderClient, scripted))}
    if provider is not None:
        given[name] = provider
    return http_client(build_app(Settings(), policies, given))


async def test_a_passthrough_rule_takes_its_path_alone(scripted: ScriptedClient) -> None:
    async with make(scripted, passthrough={PATH: PassthroughRule(model="theirs")}) as http:
        assert (await http.post(PATH, json=body())).status_code == 502  # its port is closed
        assert (await http.post("/rerank", json=body())).status_code == 200


async def test_an_upstream_is_asked_for_its_own(scripted: ScriptedClient) -> None:
    theirs = {"id": "r", "results": [{"index": 1, "relevance_score": 0.9}], "usage": {"prompt_tokens": 5}}
    async with serving(always(response(json.dumps(theirs).encode()))) as server:
        upstream = UpstreamModel(base_url=server.base_url, model="there")
        async with make(scripted, "theirs", OpenAIProvider("theirs", upstream)) as http:
            asked = body(model="theirs", documents=["a", {"text": "b", "id": 1}], top_n=1, truncate="END")
            answer = await http.post(PATH, json=asked)
            page = (await http.get("/metrics")).text
        seen = server.seen[0]
    assert (answer.status_code, answer.json()) == (200, theirs)
    assert seen.head == "POST /v1/rerank HTTP/1.1"
    assert json.loads(seen.body) == {**asked, "model": "there"}
    assert 'penstock_tokens_total{endpoint="rerank",kind="input",model="theirs"} 5.0' in page


async def test_limits_of_tenants_count_it(scripted: ScriptedClient) -> None:
    limits = Limits(requests_per_minute=1)
    async with make(scripted, tenants={"default": Tenant(limits=limits)}) as http:
        first, second = [await http.post(PATH, json=body()) for _ in range(2)]
    assert (first.status_code, second.status_code) == (200, 429)
    assert first.headers["x-ratelimit-remaining-requests"] == "0"


async def test_guardrails_read_query_and_documents(scripted: ScriptedClient) -> None:
    profile = GuardrailProfile(patterns={"secret": PatternRules(words=["xyzzy"], action="block")})
    section = GuardrailsSection(profiles={"p": profile}, default="p")
    async with make(scripted, guardrails=section) as http:
        for changes in (
            {"query": "xyzzy"},
            {"documents": ["a", "xyzzy"]},
            {"documents": [{"text": "xyzzy"}]},
        ):
            answer = await http.post(PATH, json=body(**changes))
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "content_filter"), changes
        assert (await http.post(PATH, json=body())).status_code == 200


def test_scores_are_cosines_and_bounded() -> None:
    random = np.random.default_rng(3)
    vectors = random.normal(size=(40, 384)).astype("<f4") * 1e3
    found = scores([each.tobytes() for each in vectors])
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert np.allclose(found, units[1:] @ units[0], atol=1e-5)
    assert scores([vectors[0].tobytes()] * 2)[0] <= 1.0
