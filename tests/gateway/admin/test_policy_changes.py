"""The console's endpoints for the files of the policies, over HTTP, with hostile drafts."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from gateway.admin.access import OWN_HEADER
from gateway.admin.policy_changes import DraftThreads
from gateway.admin.policy_files import _replace
from gateway.auth import Principal, tenant_id
from gateway.errors import InvalidRequest, RateLimited
from gateway.settings import Settings
from gateway.wiring.app import build_app
from policies.load import load_policies
from policies.time_limit import check_time
from tests.gateway.conftest import http_client

PATH = "/admin/policies"
KEY, OTHER = "sk-boss-canary-key", "sk-other-canary-key"
CANARY = "canary-of-the-environment"
FILES = {
    "models.yaml": "models: {one: {upstream: {base_url: 'http://127.0.0.1/v1', api_key_env: CANARY_KEY}}}\n",
    "admin.yaml": f"admin: {{principals: [boss]}}\ntenants: {{boss: {{keys: [{tenant_id(KEY)}]}}}}\n",
}
HEADERS = {"authorization": f"Bearer {KEY}", OWN_HEADER: "1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("policies")
    for name, text in FILES.items():
        (found / name).write_text(text)
    (found.parent / "outside.yaml").write_text("password: canary-outside\n")
    return found


@pytest.fixture
async def client(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx.AsyncClient]:
    monkeypatch.setenv("CANARY_KEY", CANARY)
    settings = Settings(
        api_keys=(KEY, OTHER),
        key_tenants={tenant_id(KEY): "boss"},
        policy_folder=str(folder),
        upstream_api_keys={"one": CANARY},
    )
    async with http_client(build_app(settings, load_policies(folder))) as found:
        found.headers.update(HEADERS)
        yield found


def untouched(folder: Path) -> bool:
    return {path.name: path.read_text() for path in folder.iterdir()} == FILES


async def test_the_files_their_digests_and_what_is_served(client: httpx.AsyncClient) -> None:
    found = (await client.get(f"{PATH}/files")).json()
    assert {file["name"]: file["text"] for file in found["files"]} == FILES
    assert (found["locked"], found["has_records"], found["is_rolled_back"]) == ("", False, False)
    assert CANARY not in str(found)


@pytest.mark.parametrize("path", ["files", "check", "replay", "apply"])
async def test_only_principals_of_the_policies_may(client: httpx.AsyncClient, path: str) -> None:
    method = "GET" if path == "files" else "POST"
    for headers, status in (
        ({"authorization": f"Bearer {OTHER}"}, 403),
        ({"authorization": "Bearer x"}, 401),
    ):
        answer = await client.request(method, f"{PATH}/{path}", headers=headers, json={"files": {}})
        assert answer.status_code == status


def laughs(word: str) -> str:
    lines = [f"x-{a}: &{a} [{', '.join([f'*{b}'] * 9)}]" for a, b in zip("bcdefghi", "abcdefgh", strict=True)]
    return f"x-a: &a [{', '.join([word] * 9)}]\n" + "\n".join(lines)


MODEL = "models: {x: {upstream: {base_url: 'http://127.0.0.1:9/v1', PART}}}\n"
DRAFTS: dict[str, tuple[str, str, str]] = {  # what is sent, by name, text, and what the first problem says
    "two dots": ("../x.yaml", "", "is no policy file"),
    "many dots": ("../../../../etc/passwd", "", "is no policy file"),
    "an absolute path": ("/etc/passwd.yaml", "", "is no policy file"),
    "a folder": ("sub/x.yaml", "", "is no policy file"),
    "a backslash": ("..\\x.yaml", "", "is no policy file"),
    "NUL in a name": ("a\0.yaml", "", "is no policy file"),
    "a line end in a name": ("a\n.yaml", "", "is no policy file"),
    "a hidden name": (".x.yaml", "", "is no policy file"),
    "only an ending": (".yaml", "", "is no policy file"),
    "another ending": ("x.yml", "", "is no policy file"),
    "no ending": ("x", "", "is no policy file"),
    "an empty name": ("", "", "is no policy file"),
    "a long name": ("x" * 300 + ".yaml", "", "is no policy file"),
    "a name of another script": ("правила.yaml", "", "is no policy file"),
    "markup for a name": ("<img src=x onerror=alert(1)>.yaml", "", "is no policy file"),
    "markup for a key": ("x.yaml", "<script>alert(1)</script>: 1", "unknown key"),
    "deep brackets": ("x.yaml", "x-a: " + "[" * 100_000, "nested deeper than 24 levels"),
    "deep braces": ("x.yaml", "{a: " * 1000, "nested deeper than 24 levels"),
    "deep blocks": ("x.yaml", "\n".join(" " * n + "a:" for n in range(60)), "nested deeper than 24 levels"),
    "deep conditions": ("x.yaml", "routes: {r: {rules: [{when: '" + "(" * 4000 + "'}]}}", "recursion limit"),
    "billion laughs": ("x.yaml", laughs("ha"), "expands to more than 100000 values"),
    "an anchor in itself": ("x.yaml", "x-a: &a [*a]", "an anchor contains its own alias"),
    "an unknown alias": ("x.yaml", "x-a: *canary", "undefined alias"),
    "a huge file": ("x.yaml", "#" * 600_000, "over the limit of 524288"),
    "many problems": ("x.yaml", "\n".join(f"k{n}: 1" for n in range(700)), "unknown key"),
    "a Python tag": ("x.yaml", "models: !!python/object/apply:os.system ['touch canary']", "has a tag"),
    "an include": ("x.yaml", "models: !include ../outside.yaml", "has a tag"),
    "an env tag": ("x.yaml", "models: !env CANARY_KEY", "has a tag"),
    "a variable as a URL": (
        "x.yaml",
        "models: {x: {upstream: {base_url: '${CANARY_KEY}'}}}",
        "base_url must be",
    ),
    "a variable as a key": (
        "x.yaml",
        MODEL.replace("PART", "api_key_env: '${CANARY_KEY}'"),
        "api_key_env must",
    ),
    "a variable as a name": ("x.yaml", "models: {'${CANARY_KEY}': {}}", "expected a string of the form"),
    "a key as a name": ("x.yaml", MODEL.replace("PART", f"api_key_env: {KEY}"), "api_key_env must"),
    "an unknown plug-in": ("x.yaml", MODEL.replace("PART", "api: parrot"), "api must be one of"),
    "an unknown check": (
        "x.yaml",
        "guardrails: {profiles: {p: {checks: {c: {check: os.system}}}}}",
        "must be one of",
    ),
    "NUL in a text": ("x.yaml", "a: \0", "does not allow"),
    "NUL in a path": ("x.yaml", 'models: {x: {engine: {checkpoint: "a\\0b"}}}', "is not a path"),
    "half a character in a path": (
        "x.yaml",
        'models: {x: {engine: {checkpoint: "\\ud800"}}}',
        "is not a path",
    ),
    "an unknown home": ("x.yaml", "models: {x: {engine: {checkpoint: ~canary/x}}}", "is not a path"),
    "a bell": ("x.yaml", "a: \x07", "does not allow"),
    "a tab": ("x.yaml", "models:\n\tx: 1", "indent with spaces"),
    "a byte order mark within": ("x.yaml", "models: {}\n\ufeffrotues: {}\n", ""),
    "a wrong key after CRLF": ("x.yaml", "models: {}\r\nrotues: {}\r\n", "did you mean 'routes'?"),
    "a wrong key after a mark": ("x.yaml", "\ufeffrotues: {}\n", "did you mean 'routes'?"),
    "another script": ("x.yaml", "модели: {}\n", "unknown key"),
    "emoji": ("x.yaml", "models: {🦦: {upstream: {service: ollama}}}", "expected a string of the form"),
    "right to left": ("x.yaml", "\u202emodels: {}", ""),
    "a list": ("x.yaml", "- a\n- b\n", "must be a mapping"),
    "a scalar": ("x.yaml", "models", "must be a mapping"),
    "a name that is taken": ("x.yaml", MODEL.replace("x:", "one:").replace(", PART", ""), "already defined"),
    "an open expression": (
        "x.yaml",
        "guardrails: {profiles: {p: {patterns: {a: {regex: '('}}}}}",
        "cannot be used",
    ),
    "a huge expression": (
        "x.yaml",
        "guardrails: {profiles: {p: {patterns: {a: {regex: '((a{1,100}){1,100}){1,100}'}}}}}",
        "cannot be used",
    ),
    "a login in a URL": (
        "x.yaml",
        "models: {x: {upstream: {base_url: 'http://u:canary@h/v1'}}}",
        "base_url must be",
    ),
    "a loop of comprehensions": (
        "x.yaml",
        "routes: {r: {model: one, rules: [{model: one, when: '"
        + "[1,2,3,4,5,6,7,8,9].all(a, " * 7
        + "true"
        + ")" * 7
        + "'}]}}",
        "",
    ),
}


@pytest.mark.parametrize(("name", "text", "said"), DRAFTS.values(), ids=DRAFTS)
@pytest.mark.parametrize("path", ["check", "apply"])
async def test_a_hostile_draft_is_answered_and_changes_nothing(
    client: httpx.AsyncClient, folder: Path, path: str, name: str, text: str, said: str
) -> None:
    answer = await client.post(f"{PATH}/{path}", json={"files": {name: text}, "base": {}})
    assert answer.status_code in (200, 400), answer.text
    if said:
        shown = answer.json()["problems"][0]["message"] if answer.status_code == 200 else answer.text
        assert said in shown.replace("\\\\", "\\").replace('\\"', '"'), answer.text
    told = answer.text.replace(text, "").replace(name, "")
    assert CANARY not in told and "canary-outside" not in told and KEY not in told
    assert untouched(folder)


BODIES: dict[str, tuple[bytes, int]] = {
    "no UTF-8": (b'{"files": {"x.yaml": "\xff"}}', 400),
    "half a character": (b'{"files": {"x.yaml": "\\ud800"}}', 400),
    "no files": (b"{}", 400),
    "a list": (b'{"files": ["x.yaml"]}', 400),
    "a number for a text": (b'{"files": {"x.yaml": 1}}', 400),
    "an unknown field": (b'{"files": {}, "run": "id"}', 400),
    "over 1 MiB": (b'{"files": {"x.yaml": "' + b"#" * (1 << 20) + b'"}}', 413),
    "deep JSON": (b'{"files": ' * 5000, 400),
    "no JSON": (b"files=x", 400),
}


@pytest.mark.parametrize(("body", "status"), BODIES.values(), ids=BODIES)
async def test_a_hostile_body_is_refused(client: httpx.AsyncClient, body: bytes, status: int) -> None:
    answer = await client.post(f"{PATH}/check", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status


async def test_a_check_needs_json(client: httpx.AsyncClient) -> None:
    answer = await client.post(
        f"{PATH}/check", content=b'{"files": {}}', headers={"content-type": "text/plain"}
    )
    assert answer.status_code == 415


async def test_a_replay_without_a_log_says_how_to_have_one(client: httpx.AsyncClient) -> None:
    answer = await client.post(f"{PATH}/replay", json={"files": {}})
    assert answer.json()["error"]["code"] == "no_decision_log" and "PENSTOCK_DECISION_LOG" in answer.text


async def test_a_reload_that_fails_puts_the_files_back(
    client: httpx.AsyncClient, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No supervisor has started this process."""
    files = (await client.get(f"{PATH}/files")).json()["files"]
    base = {file["name"]: file["digest"] for file in files}
    change = {"models.yaml": FILES["models.yaml"] + "# more\n", "new.yaml": "x-new: 1\n"}
    answer = await client.post(f"{PATH}/apply", json={"files": change, "base": base})
    assert answer.status_code == 400 and "The files are as they were." in answer.text
    assert untouched(folder) and "audit" not in caplog.text


async def test_files_that_cannot_be_put_back_are_told(
    client: httpx.AsyncClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full from the second file on, and has room again later."""
    files = (await client.get(f"{PATH}/files")).json()["files"]
    base = {file["name"]: file["digest"] for file in files}
    replaced: list[Path] = []

    def replace(path: Path, data: bytes | None, *, is_private: bool = False) -> None:
        if len(replaced) == 2:  # the journal, a file
            raise OSError(28, "No space left on device")
        replaced.append(path)
        _replace(path, data, is_private=is_private)

    monkeypatch.setattr("gateway.admin.policy_files._replace", replace)
    change = {"models.yaml": FILES["models.yaml"] + "# more\n", "new.yaml": "x-new: 1\n"}
    answer = await client.post(f"{PATH}/apply", json={"files": change, "base": base})
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400 and "'new.yaml' cannot be written: No space left" in message
    assert "Not put back" in message and "models.yaml" in message and "as they were" not in message
    monkeypatch.setattr("gateway.admin.policy_files._replace", _replace)
    again = await client.post(f"{PATH}/apply", json={"files": {}, "base": {"models.yaml": "0"}})
    assert again.status_code == 409 and untouched(folder)  # the next change puts them back first


@pytest.mark.parametrize(
    ("number", "code"), [(errno.EOPNOTSUPP, "policies_read_only"), (errno.EAGAIN, "policies_busy")]
)
async def test_a_folder_that_cannot_be_locked_is_told_and_no_event_loop_waits_for_it(
    client: httpx.AsyncClient, folder: Path, number: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def flock(opened: int, flags: int) -> None:
        seen.append(threading.get_ident())
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    answer = await client.post(f"{PATH}/apply", json={"files": {"new.yaml": "x-new: 1\n"}})
    assert answer.status_code in (400, 409) and answer.json()["error"]["code"] == code
    assert len(seen) == 1 and threading.get_ident() not in seen and untouched(folder)


async def test_a_text_that_was_read_before_another_change_is_refused(
    client: httpx.AsyncClient, folder: Path
) -> None:
    answer = await client.post(
        f"{PATH}/apply", json={"files": {"models.yaml": "x"}, "base": {"models.yaml": "0"}}
    )
    assert answer.status_code == 409 and "'models.yaml' has changed" in answer.text
    assert untouched(folder)


async def test_there_is_nothing_where_the_console_is_off(folder: Path) -> None:
    policies = msgspec.structs.replace(load_policies(folder), console=False)
    async with http_client(build_app(Settings(policy_folder=str(folder)), policies)) as client:
        assert (await client.get(f"{PATH}/files")).status_code == 404


async def test_one_draft_of_a_caller_at_a_time_and_an_end_for_one_that_takes_long() -> None:
    threads, go_on = DraftThreads(limit_s=0), threading.Event()
    one, other = (Principal(name, "") for name in ("one", "other"))

    def work() -> Any:  # noqa: ANN401
        go_on.wait(60)
        check_time()

    first = asyncio.create_task(threads.run(one, work))
    await asyncio.sleep(0)
    with pytest.raises(RateLimited, match="is being checked"):
        await threads.run(one, dict)
    assert await threads.run(other, dict) == {}
    go_on.set()
    with pytest.raises(InvalidRequest, match="take over 0 s to check"):
        await first
    assert await threads.run(one, dict) == {}
