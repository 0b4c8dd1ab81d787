"""What a reload refuses, keeps and says, without processes."""

from __future__ import annotations

import asyncio
import threading
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from gateway.processes import reload
from gateway.processes.messages import Version
from gateway.processes.reload import Reloader, ReloadFailed
from gateway.settings import Settings, SettingsError
from policies.document import Policies
from policies.tenants import AdminSection, Tenant


async def test_an_unexpected_error_is_an_answer_and_nothing_of_it_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def load() -> tuple[Policies, Settings]:
        raise AssertionError("sk-canary")

    changes: list[None] = []
    current = Version(1, Policies(version="old"), Settings(), ())
    reloader = Reloader(current, {}, load, lambda: changes.append(None))
    with pytest.raises(ReloadFailed, match="unexpected AssertionError; the log has more"):
        await reloader.reload()
    assert reloader.current is current and len(changes) == 1
    assert reloader.state.num_failures == 1 and "sk-canary" not in reloader.state.error
    assert "Traceback" in caplog.text


def reloader(served: Policies, *answers: Policies | Exception, settings: Settings | None = None) -> Reloader:
    """Without workers; it reads these one after the other."""
    settings = settings or Settings()
    found = iter(answers)

    def load() -> tuple[Policies, Settings]:
        answer = next(found)
        if isinstance(answer, Exception):
            raise answer
        return answer, settings

    return Reloader(Version(1, served, settings, ()), {}, load, lambda: None)


async def test_an_error_is_forgotten_when_the_change_is_undone() -> None:
    served = Policies(version="old")
    made = reloader(served, SettingsError("broken"), served, SettingsError("again"), Policies(version="new"))
    for undone in ("unchanged: old is served already", "new is served, old before"):
        with pytest.raises(ReloadFailed):
            await made.reload()
        assert made.state.error
        assert await made.reload() == undone
        assert made.state.error == ""
    assert made.state.num_failures == 2


async def test_a_rollback_to_nothing_is_no_error_of_the_policies() -> None:
    made = reloader(Policies(version="old"))
    with pytest.raises(ReloadFailed, match="there is no previous version"):
        await made.rollback()
    assert made.state.error == ""


KEY = f"key-{sha256(b'sk-a').hexdigest()[:8]}"
OPS = {"ops": Tenant(keys=[KEY])}
OPERATED = Policies(version="old", admin=AdminSection(principals=["ops"]), tenants=OPS)
OPEN = Policies(version="old", admin=AdminSection(principals=["default"]))


@pytest.mark.parametrize(
    ("old", "keys", "new"),
    [
        (OPEN, (), Policies(version="new")),
        (OPEN, (), Policies(version="new", admin=AdminSection(principals=["ops"]))),
        (OPERATED, ("sk-a",), Policies(version="new", tenants=OPS)),
        (OPERATED, ("sk-a",), Policies(version="new", admin=OPERATED.admin)),
    ],
)
async def test_nobody_is_locked_out(old: Policies, keys: tuple[str, ...], new: Policies) -> None:
    names = {key: name for name, tenant in old.tenants.items() for key in tenant.keys}
    settings = Settings(api_keys=keys, key_tenants=names)
    after = msgspec.structs.replace(
        settings, key_tenants={key: name for name, tenant in new.tenants.items() for key in tenant.keys}
    )
    made = Reloader(Version(1, old, settings, ()), {}, lambda: (new, after), lambda: None)
    with pytest.raises(ReloadFailed, match="admin.principals would name no caller any more"):
        await made.reload()
    assert made.current.policies is old


async def test_a_key_of_the_keys_file_may_manage_policies(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.touch(0o600)
    path.write_text(f'{{"sha256": "{sha256(b"sk-a").hexdigest()}", "tenant": "ops"}}')
    settings = Settings(keys_file=str(path))
    new = Policies(version="new", admin=AdminSection(principals=["ops"]))
    old = msgspec.structs.replace(new, version="old")
    made = Reloader(Version(1, old, settings, ()), {}, lambda: (new, settings), lambda: None)
    assert "new is served" in await made.reload()
    gone = msgspec.structs.replace(new, version="gone", admin=AdminSection())
    made = Reloader(Version(1, old, settings, ()), {}, lambda: (gone, settings), lambda: None)
    with pytest.raises(ReloadFailed, match="would name no caller any more"):
        await made.reload()


async def test_only_what_is_served_is_called_so() -> None:
    """What was read and is not served may be put back."""
    newer, told = msgspec.structs.replace(OPEN, version="newer"), list[str]()
    answers = iter([OPEN, Policies(version="refused"), newer])

    def on_served() -> None:
        told.append(made.current.policies.version)

    version = Version(1, OPEN, Settings(), ())
    made = Reloader(version, {}, lambda: (next(answers), Settings()), lambda: None, on_served)
    await made.reload()
    with pytest.raises(ReloadFailed):
        await made.reload()
    assert told == ["old"]
    await made.reload()
    assert told == ["old", "newer"]


async def test_a_reload_says_what_is_gone() -> None:
    served = Policies(version="old", tenants={"a": Tenant(), "b": Tenant()})
    made = reloader(served, Policies(version="new", tenants={"b": Tenant()}))
    assert await made.reload() == "new is served, old before; no longer defined: tenants.a"


async def test_probes_that_hang_do_not_keep_the_next_reload_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "LOAD_TIMEOUT_S", 0.05)
    released = threading.Event()
    served, calls = Policies(version="old"), list[int]()

    def load() -> tuple[Policies, Settings]:
        calls.append(len(calls))
        if len(calls) == 1:
            released.wait(20)
        return Policies(version="new"), Settings()

    made = Reloader(Version(1, served, Settings(), ()), {}, load, lambda: None)
    with pytest.raises(ReloadFailed, match="their probes run within 0.05 s"):
        await made.reload()
    monkeypatch.setattr(reload, "LOAD_TIMEOUT_S", 20.0)
    assert await made.reload() == "new is served, old before"
    released.set()


async def test_requests_during_a_reload_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, released = list[int](), threading.Event()

    def load() -> tuple[Policies, Settings]:
        calls.append(len(calls))
        released.wait(20)
        return Policies(version="old"), Settings()

    made = Reloader(Version(1, Policies(version="old"), Settings(), ()), {}, load, lambda: None)
    under_way = asyncio.create_task(made.reload())
    while not calls:
        await asyncio.sleep(0.001)
    for _ in range(10):
        made.request()
    released.set()
    await under_way
    await asyncio.gather(*made._tasks)
    assert len(calls) == 2
