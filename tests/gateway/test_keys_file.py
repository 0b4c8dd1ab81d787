"""The keys file: what a line may hold, who may read it, and how each mistake is named."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from gateway.auth import KeyRing
from gateway.errors import Unauthorized
from gateway.keys_file import MAX_FORMER, KeysFileError, LiveKeys, read_keys
from gateway.signed import sign, signed

NOW_S = 1_800_000_000.0  # 2027-01-15T08:00:00Z


def digest(key: str) -> str:
    return sha256(key.encode()).hexdigest()


def line(key: str, **fields: object) -> str:
    return json.dumps({"sha256": digest(key), **fields})


def write(path: Path, *lines: str, mode: int = 0o600) -> str:
    path.write_text("".join(f"{each}\n" for each in lines))
    path.chmod(mode)
    return str(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.jsonl"


def ring(path: Path, *lines: str, keys: tuple[str, ...] = (), **tenants: str) -> KeyRing:
    named = {name.replace("_", "-"): tenant for name, tenant in tenants.items()}
    return KeyRing(keys, named, LiveKeys(read_keys(write(path, *lines))), clock=lambda: NOW_S)


def test_a_key_is_its_own_tenant_or_that_of_its_line_or_of_the_policies(path: Path) -> None:
    ids = {name: f"key-{digest(name)[:8]}" for name in ("sk-own", "sk-policy", "sk-both")}
    tenants = {ids["sk-policy"]: "of-policy", ids["sk-both"]: "of-policy"}
    lines = line("sk-own"), line("sk-policy"), line("sk-both", tenant="of-line"), line("sk-line", tenant="t")
    found = KeyRing((), tenants, LiveKeys(read_keys(write(path, *lines))))
    seen = {name: found.identify(f"Bearer {name}").tenant for name in (*ids, "sk-line")}
    assert seen == {"sk-own": ids["sk-own"], "sk-policy": "of-policy", "sk-both": "of-line", "sk-line": "t"}
    assert found.tenants == {ids["sk-own"], "of-policy", "of-line", "t"}


def test_a_key_that_replaces_another_one_keeps_its_id_and_cache(path: Path) -> None:
    old = f"key-{digest('sk-old')[:8]}"
    found = ring(path, line("sk-old"), line("sk-new", id=old))
    assert found.identify("Bearer sk-new") == found.identify("Bearer sk-old") == found.principal_of(old)
    assert found.identify("Bearer sk-new").key_id == old.removeprefix("key-")
    other = ring(path, line("sk-new", id=old), line("sk-3")).identify("Bearer sk-3")
    assert other.tenant_salt not in ("", found.identify("Bearer sk-new").tenant_salt)


def test_a_tenant_of_both_kinds_of_keys_has_one_cache(path: Path) -> None:
    own = f"key-{digest('sk-env')[:8]}"
    found = KeyRing(["sk-env"], {own: "t"}, LiveKeys(read_keys(write(path, line("sk-file", tenant="t")))))
    assert found.identify("Bearer sk-env").tenant_salt == found.identify("Bearer sk-file").tenant_salt


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"expires": "2027-01-15T07:59:59Z"}, "expired on 2027-01-15 07:59:59 UTC"),
        ({"expires": "2027-01-15T08:00:00Z"}, "expired"),
        ({"expires": "2027-01-15T17:59:00+10:00"}, "expired"),
        ({"expires": "2027-01-14T23:59:00-08:00"}, "expired"),
        ({"expires": "0001-01-01T00:00:00+14:00"}, "expired"),
        ({"revoked": "2027-01-01T00:00:00Z"}, "revoked on 2027-01-01"),
        ({"revoked": "2030-01-01T00:00:00Z", "expires": "2031-01-01T00:00:00Z"}, "revoked"),
        ({"expires": "2027-01-15T08:00:01Z"}, ""),
        ({"expires": "2027-01-15T18:01:00+10:00"}, ""),
        ({"expires": "9999-12-31T23:59:59-14:00"}, ""),
        ({"expires": None, "revoked": None}, ""),
    ],
)
def test_the_end_of_a_key_is_told_to_its_holder_only(
    path: Path, fields: dict[str, object], said: str
) -> None:
    found = ring(path, line("sk-one", **fields), line("sk-two"))
    own = f"key-{digest('sk-one')[:8]}"
    if not said:
        assert found.identify("Bearer sk-one") == found.principal_of(own)
        return
    with pytest.raises(Unauthorized, match=said) as refused:
        found.identify("Bearer sk-one")
    assert refused.value.headers == {"www-authenticate": "Bearer"}
    for other in ("sk-on", "sk-three"):
        with pytest.raises(Unauthorized, match="Incorrect API key") as unknown:
            found.identify(f"Bearer {other}")
        assert "expired" not in str(unknown.value) and "revoked" not in str(unknown.value)
    with pytest.raises(Unauthorized, match="no longer configured"):
        found.principal_of(own)
    assert found.tenants == {f"key-{digest('sk-two')[:8]}"}


def test_the_file_decides_on_a_key_that_is_configured_as_well(path: Path) -> None:
    found = ring(path, line("sk-env", revoked="2027-01-01T00:00:00Z"), keys=("sk-env", "sk-other"))
    with pytest.raises(Unauthorized, match="revoked"):
        found.identify("Bearer sk-env")
    with pytest.raises(Unauthorized):
        found.principal_of(f"key-{digest('sk-env')[:8]}")
    assert found.tenants == {found.identify("Bearer sk-other").tenant}


def test_a_file_without_a_good_key_opens_nothing(path: Path) -> None:
    found = ring(path, line("sk-one", revoked="2027-01-01T00:00:00Z"))
    assert not found.is_open and found.tenants == frozenset()
    with pytest.raises(Unauthorized, match="No API key"):
        found.identify("")
    with pytest.raises(Unauthorized):
        found.principal_of("default")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "holds no key"),
        (b"\n \n", "holds no key"),
        (b"{", "line 1: "),
        (b"[]\n", "line 1: Expected `object`"),
        (b"{}\n", "missing required field `sha256`"),
        (b"\n\n{}\n", "line 3: "),
        (b"sk-canary\n", "line 1: "),
        (b'{"sha256": "sk-canary"}', "sha256 has 9 characters that are not the 64 hex digits"),
        (b'{"sha256": "%s"}' % (b"a" * 63), "sha256 has 63 characters"),
        (b'{"sha256": "%s"}' % (b"a" * 65), "sha256 has 65 characters"),
        (b'{"sha256": "%s"}' % (b"A" * 64), "lower case"),
        (b'{"sha256": "%s"}' % ("é" * 64).encode(), "64 hex digits"),
        (b'{"sha256": "%s\\n"}' % (b"a" * 64), "sha256 has 65 characters"),
        (b'{"sha256": 1}', "Expected `str`, got `int` - at `$.sha256`"),
        (b'{"key": "sk-canary", "sha256": "%s"}' % (b"a" * 64), "unknown field `key`"),
        (b'{"sha256": "%s", "id": "key-1"}' % (b"a" * 64), "id 'key-1' must be key- and 8 hex digits"),
        (b'{"sha256": "%s", "tenant": "%s"}' % (b"a" * 64, "überall".encode()), "tenant 'überall' must be"),
        (b'{"sha256": "%s", "tenant": "a\\n"}' % (b"a" * 64), "tenant 'a\\n' must be"),
        (b'{"sha256": "%s", "tenant": "%s"}' % (b"a" * 64, b"t" * 65), "must be 1 to 64"),
        (b'{"sha256": "%s", "note": "\\u001b[2J"}' % (b"a" * 64), "note '\\x1b[2J' must be"),
        (b'{"sha256": "%s", "expires": "2027-01-01T00:00:00"}' % (b"a" * 64), "timezone"),
        (b'{"sha256": "%s", "expires": "tomorrow"}' % (b"a" * 64), "`$.expires`; each line"),
        (b'{"sha256": "%s", "expires": 1800000000}' % (b"a" * 64), "`$.expires`"),
        (b'{"sha256": "%s"}\n{"sha256": "%s"}' % (b"a" * 64, b"a" * 64), "line 2: has the sha256 of line 1"),
        (b'{"sha256": "%s"}\n{"sha256": "%s", "no' % (b"a" * 64, b"b" * 64), "line 2: "),
        (
            b'{"sha256": "%s"}\n{"sha256": "%s", "id": "key-aaaaaaaa", "tenant": "t"}'
            % (b"a" * 64, b"b" * 64),
            "line 2: id 'key-aaaaaaaa' has tenant 't', in line 1 ''",
        ),
        (b'\xff\xfe{"sha256"', "line 1: "),
        (b'{"sha256": "%s", "note": "\xff"}' % (b"a" * 64), "line 1: "),
        (b"\0" * 100, "line 1: "),
    ],
)
def test_mistakes_are_named_without_what_may_be_a_key(path: Path, data: bytes, said: str) -> None:
    path.write_bytes(data)
    path.chmod(0o600)
    with pytest.raises(KeysFileError) as found:
        read_keys(str(path))
    message = str(found.value)
    assert said in message and str(path) in message, message
    assert "canary" not in message and "a" * 16 not in message


def test_line_ends_of_other_systems_and_none_at_the_end(path: Path) -> None:
    path.write_bytes(f"{line('sk-1')}\r\n\r\n{line('sk-2')}".encode())
    path.chmod(0o600)
    assert len(read_keys(str(path)).by_digest) == 2


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o604, 0o602, 0o601, 0o700 | 0o010, 0o777])
def test_a_file_that_others_may_use_is_refused(path: Path, mode: int) -> None:
    write(path, line("sk-1"), mode=mode)
    with pytest.raises(KeysFileError, match=rf"{mode:04o}.*chmod 600") as found:
        read_keys(str(path))
    assert str(path) in str(found.value)


@pytest.mark.parametrize(("mode", "is_good"), [(0o440, True), (0o640, True), (0o444, False), (0o660, False)])
def test_a_group_may_read_what_belongs_to_root(
    path: Path, mode: int, is_good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, line("sk-1"), mode=mode)
    found = list(os.stat(path))
    found[4] = 0
    monkeypatch.setattr(os, "fstat", lambda fd: os.stat_result(found))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    if is_good:
        assert read_keys(str(path)).by_digest
    else:
        with pytest.raises(KeysFileError, match="chmod"):
            read_keys(str(path))


def test_a_file_of_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, line("sk-1"))
    found = list(os.stat(path))
    found[4] = 4242
    monkeypatch.setattr(os, "fstat", lambda fd: os.stat_result(found))
    with pytest.raises(KeysFileError, match="belongs to the user 4242"):
        read_keys(str(path))


def _folder(path: Path) -> None:
    path.mkdir()


def _pipe(path: Path) -> None:
    os.mkfifo(path, 0o600)


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _nothing(path: Path) -> None:
    assert not path.exists()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_folder, "regular file|is a directory"),
        (_pipe, "not a regular file"),
        (_loop, "cannot be used: Too many levels"),
        (_nothing, "does not exist: make it with `penstock keys new`"),
    ],
)
def test_what_is_no_file(path: Path, make: Callable[[Path], None], said: str) -> None:
    make(path)
    with pytest.raises(KeysFileError, match=f"(?i){said}"):
        read_keys(str(path))


def test_what_was_signed_before_a_change_is_still_good(path: Path) -> None:
    live = LiveKeys(read_keys(write(path, line("sk-1"))))
    found = KeyRing((), {}, live)
    text = sign("kind", b"data", found)
    for number in range(MAX_FORMER + 1):
        assert signed("kind", text, found) == b"data"
        assert signed("other", text, found) is None
        assert number == 0 or sign("kind", b"data", found) != text
        live.use(read_keys(write(path, line("sk-1"), line(f"sk-more-{number}"))))
    assert signed("kind", text, found) is None


def test_ten_thousand_keys_cost_no_more_than_ten(path: Path) -> None:
    def cost_s(number: int) -> float:
        found = ring(path, *(line(f"sk-{each}", tenant=f"t{each}") for each in range(number)))
        best_s = float("inf")
        for _ in range(7):
            began_s = time.thread_time()
            for _ in range(500):
                found.identify("Bearer sk-9")
            best_s = min(best_s, time.thread_time() - began_s)
        return best_s

    assert cost_s(10_000) < 3 * cost_s(10)
