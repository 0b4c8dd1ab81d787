"""Upstreams that fail in every way: alone, beside another target, or with a fallback; streamed and whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import httpx
import pytest

from gateway.fleet.health import MAX_FAILURES_IN_ROW
from tests.e2e.conftest import StartServer
from tests.e2e.server import Server
from tests.e2e.upstream import USAGE, Upstream

RETRIED = ("500", "502", "503", "504", "529", "408", "429", "429-0", "reset", "role", "cut")
NOT_RETRIED = {"401": 502, "403": 502, "429-7": 429, "429-date": 429, "501": 502, "hang": 504, "stall": 504}
"""Fault → the status that the client gets."""
FAULTS = (*RETRIED, *NOT_RETRIED)
WAYS = ("streamed", "whole")
BREAKS_OFF = {("cut", "streamed"), ("stall", "streamed")}
"""The client has seen a part of the answer: no other one can follow."""


@pytest.fixture(scope="module")
def faulty() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.close()


@pytest.fixture(scope="module")
def sound() -> Iterator[Upstream]:
    upstream = Upstream(is_sound=True)
    yield upstream
    upstream.close()


def limits(fault: str) -> dict[str, float]:
    """Short where the upstream says no more; what answers has time on a busy machine."""
    limit_s = 0.5 if fault in ("hang", "stall") else 20.0
    return {"first_token_timeout_s": limit_s, "idle_timeout_s": limit_s}


@pytest.fixture(scope="module")
def gateway(
    start_module_server: StartServer,
    faulty: Upstream,
    sound: Upstream,
    tmp_path_factory: pytest.TempPathFactory,
) -> Server:
    """A model of its own for each case, so that none spends another's retries."""
    names = {
        f"{place}-{fault}-{way}": fault
        for place in ("one", "all", "fb", "kind")
        for fault in FAULTS
        for way in WAYS
    }
    others = dict.fromkeys(["off", "counted", *(f"narrow-{way}" for way in WAYS)], "")
    models = {
        name: {"upstream": {"base_url": faulty.base_url, **limits(fault)}}
        for name, fault in (names | others).items()
    }
    refusing = [f"refuse-{way}" for way in WAYS]
    models |= {name: {"upstream": {"base_url": "http://127.0.0.1:9/v1"}} for name in refusing}
    models |= {"sound": {"upstream": {"base_url": sound.base_url}}}
    fallbacks = {name: {"model": name, "fallback": {"any": ["sound"]}} for name in [*names, *refusing]}
    routes = {f"r-{name}": route for name, route in fallbacks.items()}
    routes["r-off"] = {"model": "off", "retry": {"attempts": 0}}
    targets = {"base_url": sound.base_url, "targets": [{"base_url": faulty.base_url}, {}]}
    models |= {
        f"two-{fault}-{way}": {"upstream": targets | limits(fault)} for fault in FAULTS for way in WAYS
    }
    half_dead = {"base_url": sound.base_url, "targets": [{"base_url": "http://127.0.0.1:9/v1"}, {}]}
    models |= {"half": {"upstream": half_dead}}
    candidates = {"dead": {"quality": 0.5}, "sound": {"quality": 0.5}}
    models |= {"dead": {"upstream": {"base_url": "http://127.0.0.1:9/v1"}}}
    routes["fastest"] = {
        "choose": {"strategy": "fastest", "candidates": candidates},
        "fallback": {"any": ["dead", "sound"]},
    }
    both = {"base_url": sound.base_url, "targets": [{"base_url": faulty.base_url}, {}]}
    models |= {f"slow-{way}": {"upstream": both} for way in WAYS}
    routes |= {f"r-slow-{way}": {"model": f"slow-{way}", "hedge": {"after_s": 0.2}} for way in WAYS}
    routes["ready"] = {"model": "dead", "rules": [{"when": "!live.ready['dead']", "model": "sound"}]}
    folder = tmp_path_factory.mktemp("policies")
    document = {"models": models, "routes": routes, "routing": {"expose": True}}
    (folder / "all.yaml").write_text(json.dumps(document))
    return start_module_server("--policies", str(folder))


def ask(gateway: Server, model: str, text: str, way: str, **fields: object) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": text}], "stream": way == "streamed"}
    body |= fields
    return httpx.post(f"{gateway.base_url}/chat/completions", json=body, timeout=30)


def is_answered(response: httpx.Response) -> bool:
    return response.status_code == 200 and "echo" in response.text and '"error"' not in response.text


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", RETRIED)
def test_one_transient_failure_does_not_reach_the_client(gateway: Server, fault: str, way: str) -> None:
    if (fault, way) in BREAKS_OFF:
        pytest.skip("content was sent")
    response = ask(gateway, f"one-{fault}-{way}", f"fault {fault} 1", way)
    assert is_answered(response), response.text
    assert response.headers["x-penstock-attempts"] == "2"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_lasting_failure_is_the_clients_error(
    gateway: Server, faulty: Upstream, fault: str, way: str
) -> None:
    model = f"all-{fault}-{way}"
    response = ask(gateway, model, f"fault {fault} 99", way)
    if (fault, way) in BREAKS_OFF:
        assert response.status_code == 200 and '"error"' in response.text.splitlines()[-2]
        assert faulty.num_seen(model) == 1
    elif fault in RETRIED:
        assert response.status_code in (408, 429, 500, 502, 503, 504)
        assert response.headers["x-penstock-attempts"] == "3" and faulty.num_seen(model) == 3
    else:
        assert response.status_code == NOT_RETRIED[fault]
        assert response.headers["x-penstock-attempts"] == "1" and faulty.num_seen(model) == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fallback_answers_after_a_lasting_failure(gateway: Server, fault: str, way: str) -> None:
    if (fault, way) in BREAKS_OFF:
        pytest.skip("content was sent")
    response = ask(gateway, f"r-fb-{fault}-{way}", f"fault {fault} 99", way)
    assert is_answered(response), response.text
    assert response.headers["x-penstock-model"] == "sound"
    assert response.headers["x-penstock-attempts"] == ("4" if fault in RETRIED else "2")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "501"])  # another would say the same
def test_another_target_answers_after_a_lasting_failure(
    gateway: Server, faulty: Upstream, fault: str, way: str
) -> None:
    if (fault, way) in BREAKS_OFF:
        pytest.skip("content was sent")
    model = f"two-{fault}-{way}"
    responses = [ask(gateway, model, f"fault {fault} 99", way) for _ in range(3)]
    assert all(map(is_answered, responses)), [response.text for response in responses]
    attempts = [response.headers["x-penstock-attempts"] for response in responses]
    assert sorted(attempts) == ["1", "1", "2"] and faulty.num_seen(model) == 1


def test_a_target_that_is_dead_is_seen_once_by_many_requests(gateway: Server, sound: Upstream) -> None:
    responses = [ask(gateway, "half", "hi", "whole") for _ in range(100)]
    assert all(map(is_answered, responses))
    assert sum(response.headers["x-penstock-attempts"] != "1" for response in responses) <= 5
    states = httpx.get(f"{gateway.root_url}/health/ready").json()["models"]
    assert states["half"]["ready"] and len(states["half"]["targets"]) == 2
    assert "targets" not in states["sound"]
    name = "penstock_upstream_first_content_seconds_count"
    gateway.settle()
    assert (
        gateway.metric(name, model="half") == gateway.metric(name, model="half", target=sound.base_url) == 100
    )


@pytest.mark.parametrize("way", WAYS)
def test_a_second_target_answers_for_a_slow_one(gateway: Server, faulty: Upstream, way: str) -> None:
    model = f"slow-{way}"
    faulty.left.clear()
    responses = [ask(gateway, f"r-{model}", "fault hang 99", way) for _ in range(2)]
    assert all(map(is_answered, responses))
    assert sorted(response.headers["x-penstock-attempts"] for response in responses) == ["1", "2"]
    assert faulty.num_seen(model) == 1 and faulty.left.wait(5)
    gateway.settle()
    assert gateway.metric("penstock_upstream_retries_total", model=model, cause="hedge") == 1
    ready = httpx.get(f"{gateway.root_url}/health/ready").json()["models"][model]
    assert ready["targets"] == ["ready", "ready"]


@pytest.mark.parametrize("way", WAYS)
def test_a_refused_connection_is_retried_and_falls_back(gateway: Server, way: str) -> None:
    response = ask(gateway, f"refuse-{way}", "hi", way)
    assert response.status_code == 502 and response.headers["x-penstock-attempts"] == "3"
    assert is_answered(ask(gateway, f"r-refuse-{way}", "hi", way))


@pytest.mark.parametrize("way", WAYS)
def test_an_upstream_without_n_serves_on_and_is_paid(gateway: Server, faulty: Upstream, way: str) -> None:
    model, num_asked = f"narrow-{way}", MAX_FAILURES_IN_ROW + 1
    for _ in range(num_asked):
        response = ask(gateway, model, "hi", way, n=2)
        assert response.headers["x-penstock-attempts"] == "1"
        assert "upstream_wrong_count" in response.text and "1 of 2 choices" in response.text
    assert faulty.num_seen(model) == num_asked
    told = num_asked * USAGE["completion_tokens"]
    gateway.settle()
    assert gateway.metric("penstock_tokens_total", model=model, kind="output") == told
    assert httpx.get(f"{gateway.root_url}/health/ready").json()["models"][model]["phase"] == "ready"
    assert is_answered(ask(gateway, model, "hi", way))


def test_rules_turn_retries_off(gateway: Server, faulty: Upstream) -> None:
    assert ask(gateway, "r-off", "fault 503 1", "whole").status_code == 503
    assert faulty.num_seen("off") == 1


def test_retries_are_counted(gateway: Server) -> None:
    ask(gateway, "counted", "fault 503 2", "whole")
    gateway.settle()
    assert gateway.metric("penstock_upstream_retries_total", model="counted", cause="unavailable") == 2
    assert gateway.metric("penstock_upstream_retries_total", model="counted") == 2
    assert gateway.metric("penstock_upstream_failures_total", model="counted", kind="5xx") == 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", FAULTS)
def test_each_failed_attempt_is_counted_by_its_kind(gateway: Server, fault: str, way: str) -> None:
    model = f"kind-{fault}-{way}"
    ask(gateway, model, f"fault {fault} 99", way)
    kinds = {"reset": "cut", "role": "cut", "cut": "cut", "hang": "timeout", "stall": "timeout"}
    kinds |= {"401": "auth", "403": "auth", "408": "timeout", "504": "timeout"}
    kind = kinds.get(fault, "429" if fault.startswith("429") else "5xx")
    num_calls = 3 if fault in RETRIED and (fault, way) not in BREAKS_OFF else 1
    gateway.settle()
    samples = gateway.samples("penstock_upstream_failures_total", model=model)
    assert {each.labels["kind"]: each.value for each in samples if each.value} == {kind: num_calls}


def test_choices_pass_over_a_dead_upstream(gateway: Server) -> None:
    def ask_until(is_enough: Callable[[], bool]) -> None:
        while len(responses) < 100 and not is_enough():
            responses.append(ask(gateway, "fastest", "hi", "whole"))

    def is_out() -> bool:
        return gateway.metric("penstock_upstream_ejections_total", model="dead", trouble="failing") >= 1

    responses: list[httpx.Response] = []
    ask_until(is_out)  # and looks at once: on a slow machine a hundred answers outlast its pause
    assert ask(gateway, "ready", "hi", "whole").headers["x-penstock-model"] == "sound"
    ready = httpx.get(f"{gateway.root_url}/health/ready")
    assert ready.status_code == 200  # other models, and other gateways, can do nothing about it
    states = ready.json()["models"]
    assert (states["dead"]["ready"], states["dead"]["phase"]) == (False, "failing")
    assert (states["sound"]["ready"], states["sound"]["phase"]) == (True, "ready")
    ask_until(lambda: False)
    assert len(responses) == 100 and all(map(is_answered, responses))
    assert sum(response.headers["x-penstock-attempts"] != "1" for response in responses) <= 5


def test_a_refused_key_is_an_error_in_the_log(gateway: Server) -> None:
    ask(gateway, "all-403-whole", "fault 403 99", "whole")
    lines = [line for line in gateway.log.splitlines() if "'all-403-whole' at http" in line]
    assert lines and all(" ERROR " in line for line in lines)


def test_workers_share_what_one_of_them_finds_out(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("policies")
    models = {"dead": {"upstream": {"base_url": "http://127.0.0.1:9/v1"}}}
    (folder / "all.yaml").write_text(json.dumps({"models": models}))
    server = start_server("--policies", str(folder), "--workers", "2")
    body = {"model": "dead", "messages": [{"role": "user", "content": "hi"}]}
    with httpx.Client(timeout=30) as client:  # one connection, so one worker
        for _ in range(2):
            assert client.post(f"{server.base_url}/chat/completions", json=body).status_code == 502
    pages = [httpx.get(f"{server.root_url}/health/ready").json() for _ in range(30)]
    assert {page["models"]["dead"]["phase"] for page in pages} == {"failing"}
