"""The folder of policies: what is shown of it, and writes that are whole or not there."""

from __future__ import annotations

import base64
import itertools
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.admin.policy_files import JOURNAL, PolicyFolder
from gateway.errors import InvalidRequest
from gateway.settings import DEFAULT_POLICIES
from policies.errors import PolicyError

TEXT = "models:\n  one: {upstream: {base_url: 'http://h/v1'}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> PolicyFolder:
    (tmp_path / "a.yaml").write_text(TEXT)
    return PolicyFolder(tmp_path, ["sk-of-the-gateway"])


def change(folder: PolicyFolder, name: str, text: str) -> None:
    base = {file.name: file.digest for file in folder.files()}
    folder.write(*folder.change({name: text}, base))
    folder.settle()


def test_a_change_is_written_with_the_mode_of_before_and_leaves_no_other_file(folder: PolicyFolder) -> None:
    path = folder.path / "a.yaml"
    path.chmod(0o640)
    (folder.path / ".a.yaml.0123.tmp").write_text("left by a process that was killed")
    change(folder, "a.yaml", "# ü 🦦\r\n" + TEXT)
    assert path.read_bytes() == ("# ü 🦦\r\n" + TEXT).encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(folder.path) == ["a.yaml"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_change_keeps_the_owner(folder: PolicyFolder) -> None:
    os.chown(folder.path / "a.yaml", 1234, 4321)
    change(folder, "a.yaml", TEXT + "\n")
    status = (folder.path / "a.yaml").stat()
    assert (status.st_uid, status.st_gid) == (1234, 4321)


def test_a_write_that_fails_leaves_the_old_file(
    folder: PolicyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InvalidRequest, match=r"cannot be written: No space left on device"):
        change(folder, "a.yaml", "models: {}\n")
    assert (folder.path / "a.yaml").read_text() == TEXT
    assert os.listdir(folder.path) == ["a.yaml"]


def test_a_change_of_several_files_that_is_cut_off_at_any_step_is_made_or_not(folder: PolicyFolder) -> None:
    """And so where the process that undoes it is killed too."""
    old = {folder.path / name: name.encode() * 999 for name in ("a.yaml", "b.yaml", "c.yaml")}
    new = {path: path.name.encode() * 777 for path in [*old, folder.path / "d.yaml"]}
    before = {path: old.get(path) for path in new}

    def change() -> None:
        with folder.alone():
            folder.write(before, new)
            folder.settle()

    seen, step, is_killed = [], 0, True
    while is_killed:
        for path in new:
            path.unlink(missing_ok=True)
        for path, data in old.items():
            path.write_bytes(data)
        is_killed = _is_killed(change, step)
        seen.append(folder.texts())
        _is_killed(folder.recover, step % 7)
        folder.recover()
        assert folder.texts() in (old, new)
        assert not (folder.path / JOURNAL).exists()
        step += 1
    assert folder.texts() == seen[-1] == new and seen[0] == old
    assert any(texts not in (old, new) for texts in seen), "no kill has left a part of it"


def _is_killed(work: Callable[[], object], step: int) -> bool:
    """Whether a process of its own ends with work, before that many calls that change files."""
    if child := os.fork():
        return os.waitpid(child, 0)[1] != 0
    calls = itertools.count()

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        return lambda *arguments, **names: os._exit(9) if next(calls) == step else real(*arguments, **names)

    for name in ("replace", "unlink", "fsync"):
        setattr(os, name, counted(getattr(os, name)))
    try:
        work()
        os._exit(0)
    finally:
        os._exit(1)


def test_a_change_that_is_served_is_not_undone(
    folder: PolicyFolder, caplog: pytest.LogCaptureFixture
) -> None:
    """The process that applied it has ended before it could say so."""
    path, other = folder.path / "a.yaml", folder.path / "b.yaml"
    before, after = folder.change({"a.yaml": "x: 1", "b.yaml": "x: 2"}, {"a.yaml": folder.files()[0].digest})
    folder.write(before, after)
    with folder.alone({path: b"x: 1", other: b"x: 2"}):
        assert folder.texts() == after and not (folder.path / JOURNAL).exists()
    assert "audit: the change of a.yaml, b.yaml is served and kept" in caplog.text
    folder.put_back(before, after)
    folder.write(before, after)
    folder.recover({path: b"x: 1"})  # of a part of it
    assert folder.texts() == {path: TEXT.encode()}


def test_a_change_that_cannot_be_undone_is_an_error_until_it_can_be(
    folder: PolicyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str | Path, other: Path) -> None:
        raise OSError(28, "No space left on device")

    path = folder.path / "a.yaml"
    folder.write({path: TEXT.encode()}, {path: b"x: 1"})
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(PolicyError, match=rf"a.yaml: could not be put back .* delete .*{JOURNAL}"):
            folder.recover()
        with pytest.raises(PolicyError), folder.alone():
            pytest.fail("a change on top of half of another")
    folder.recover()
    assert folder.texts() == {path: TEXT.encode()}


def test_no_other_user_may_read_the_texts_that_are_kept(folder: PolicyFolder) -> None:
    path, journal = folder.path / "a.yaml", folder.path / JOURNAL
    for make in (lambda: journal.symlink_to(path), journal.touch):
        make()
        path.chmod(0o644)
        folder.write({path: TEXT.encode()}, {path: TEXT.encode()})
        status = journal.lstat()
        assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o600, os.geteuid())
        folder.settle()


def test_a_change_that_is_being_made_is_not_undone(folder: PolicyFolder) -> None:
    path = folder.path / "a.yaml"
    with folder.alone():
        folder.write({path: TEXT.encode()}, {path: b"x-one: 1\n"})
        PolicyFolder(folder.path).recover()
        assert path.read_text() == "x-one: 1\n"
    (folder.path / "b.yaml").write_text("x-other: 1\n")
    folder.recover()
    assert path.read_text() == TEXT and (folder.path / "b.yaml").exists()


JOURNALS = {
    "of another user": b'{"a.yaml": ["eA==", "TEXT"]}',
    "a path": b'{"../a.yaml": ["eA==", "TEXT"]}',
    "no JSON": b'{"a.ya',
    "another shape": b'["a.yaml"]',
}


@pytest.mark.parametrize(("name", "text"), JOURNALS.items(), ids=JOURNALS)
def test_a_journal_that_is_not_ours_changes_nothing_and_goes(
    folder: PolicyFolder, name: str, text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may write into the folder must not write elsewhere by the gateway's rights."""
    outside = folder.path.parent / "a.yaml"
    outside.write_text(TEXT)
    journal = folder.path / JOURNAL
    journal.write_bytes(text.replace(b"TEXT", base64.b64encode(TEXT.encode())))
    if name == "of another user":
        monkeypatch.setattr(os, "geteuid", lambda: 1234567)
    elif name == "a path":
        (folder.path / "a.yaml").write_text("x-of: another\n")
    kept = (folder.path / "a.yaml").read_text()
    folder.recover()
    assert ((folder.path / "a.yaml").read_text(), outside.read_text()) == (kept, TEXT)
    assert not os.path.lexists(journal)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_file_is_no_journal(folder: PolicyFolder, kind: str) -> None:
    journal = folder.path / JOURNAL
    if kind == "link":
        journal.symlink_to(folder.path / "a.yaml")
    elif kind == "pipe":
        os.mkfifo(journal)
    else:
        journal.mkdir()
    folder.recover()
    assert folder.texts() == {folder.path / "a.yaml": TEXT.encode()}


def test_what_was_there_can_be_put_back(folder: PolicyFolder) -> None:
    before, after = folder.change({"a.yaml": "x", "b.yaml": "y"}, {"a.yaml": folder.files()[0].digest})
    folder.write(before, after)
    assert [path.name for path in folder.texts()] == ["a.yaml", "b.yaml"]
    assert folder.put_back(before, after) == []
    assert folder.texts() == {folder.path / "a.yaml": TEXT.encode()}


def test_what_others_write_meanwhile_is_kept(folder: PolicyFolder) -> None:
    """An editor asks for no lock, neither before the write nor before a reload fails."""
    path, other = folder.path / "a.yaml", "x-of: another\n"
    before, after = folder.change({"a.yaml": "x", "b.yaml": "y"}, {"a.yaml": folder.files()[0].digest})
    path.write_text(other)
    with pytest.raises(InvalidRequest, match="'a.yaml' has changed since it was read"):
        folder.write(before, after)
    path.write_text(TEXT)
    folder.write(before, after)
    path.write_text(other)
    assert folder.put_back(before, after) == ["a.yaml"]
    assert folder.texts() == {path: other.encode()}


@pytest.mark.parametrize("base", [{}, {"a.yaml": ""}, {"a.yaml": "0" * 64}, {"gone.yaml": "0" * 64}])
def test_a_change_on_another_text_is_refused(folder: PolicyFolder, base: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="has changed since it was read") as caught:
        folder.change({"a.yaml": "x"}, base)
    assert caught.value.status == 409


def test_a_file_that_has_come_meanwhile_is_not_replaced(folder: PolicyFolder) -> None:
    base = {"a.yaml": folder.files()[0].digest}
    (folder.path / "b.yaml").write_text("x-of: another\n")
    with pytest.raises(InvalidRequest, match="'b.yaml' has changed"):
        folder.change({"b.yaml": "x"}, base)


def test_a_link_out_of_the_folder_is_neither_shown_nor_changed(
    folder: PolicyFolder, tmp_path_factory: pytest.TempPathFactory
) -> None:
    secret = tmp_path_factory.mktemp("elsewhere") / "shadow"
    secret.write_text("root:canary")
    (folder.path / "b.yaml").symlink_to(secret)
    shown = folder.files()[1]
    assert (shown.name, shown.text) == ("b.yaml", "") and "link" in shown.locked
    with pytest.raises(InvalidRequest, match="link to a file elsewhere"):
        change(folder, "b.yaml", "x")
    assert secret.read_text() == "root:canary"


def test_a_link_within_the_folder_stays_one(folder: PolicyFolder) -> None:
    (folder.path / "b.yaml").symlink_to("a.yaml")
    change(folder, "b.yaml", "x-one: 1\n")
    assert (folder.path / "b.yaml").is_symlink()
    assert (folder.path / "a.yaml").read_text() == "x-one: 1\n"


def test_a_secret_is_masked_and_its_mask_is_not_written_over_it(folder: PolicyFolder) -> None:
    path = folder.path / "a.yaml"
    path.write_text(TEXT + "# sk-of-the-gateway\n# password: hunter22\n")
    file = folder.files()[0]
    assert file.text == TEXT + "# ***\n# password: ***\n" and "line 3 " in file.note
    with pytest.raises(InvalidRequest, match="line 3 holds what may be a secret"):
        change(folder, "a.yaml", file.text)
    change(folder, "a.yaml", TEXT)
    assert path.read_text() == TEXT


def test_what_is_no_text_is_locked(folder: PolicyFolder) -> None:
    (folder.path / "a.yaml").write_bytes(b"\xff\xfe")
    assert folder.files()[0].locked == "It is not UTF-8 text."
    (folder.path / "a.yaml").write_bytes(b"#" * 600_000)
    assert folder.files()[0].locked == "It is over 524288 bytes."


def test_a_name_that_is_not_utf8_is_shown_and_leaves_the_others_to_change(folder: PolicyFolder) -> None:
    os.close(os.open(os.fsencode(folder.path) + b"/\xff.yaml", os.O_CREAT | os.O_WRONLY))
    assert [(file.name, file.locked) for file in folder.files()] == [
        ("a.yaml", ""),
        ("?.yaml", "Its name is not UTF-8."),
    ]
    change(folder, "a.yaml", "x-one: 1\n")
    with pytest.raises(InvalidRequest, match="is no policy file here"):
        change(folder, "?.yaml", "x")
    assert folder.hidden("\udcff.yaml is empty") == "?.yaml is empty"


def test_a_folder_that_is_gone_cannot_be_changed(folder: PolicyFolder) -> None:
    folder.path.rename(folder.path.with_name("gone"))
    folder.recover()
    with pytest.raises(InvalidRequest, match="cannot be read: No such file or directory"), folder.alone():
        pass


def test_a_text_is_masked_again_only_once_it_has_changed(
    folder: PolicyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = folder.files()
    monkeypatch.setattr("gateway.admin.policy_files.masked", lambda text, secrets: "masked again\n" * 2)
    assert folder.files() == first
    (folder.path / "a.yaml").write_text(TEXT + "#")
    assert folder.files()[0].text == "masked again\n" * 2


def test_a_named_pipe_is_not_waited_for(folder: PolicyFolder) -> None:
    os.mkfifo(folder.path / "b.yaml")
    with pytest.raises(PolicyError, match=r"b.yaml: is not a file"):
        folder.files()


def test_a_folder_with_a_files_name_is_told_and_leaves_nothing_open(folder: PolicyFolder) -> None:
    (folder.path / "b.yaml").mkdir()
    opened = os.listdir("/proc/self/fd")
    for _ in range(3):
        with pytest.raises(PolicyError, match=r"b.yaml: cannot be read: Is a directory"):
            folder.files()
    assert os.listdir("/proc/self/fd") == opened


def test_one_file_in_place_of_a_folder(folder: PolicyFolder) -> None:
    single = PolicyFolder(folder.path / "a.yaml")
    change(single, "a.yaml", "x-one: 1\n")
    with pytest.raises(InvalidRequest, match="is no policy file here"):
        single.draft({"b.yaml": ""})


def test_the_policies_that_ship_are_locked() -> None:
    assert "ship with Penstock" in PolicyFolder(DEFAULT_POLICIES).locked


def test_a_folder_that_cannot_be_written_is_locked(
    folder: PolicyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert folder.locked == ""
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    assert "may not write into" in folder.locked
    with pytest.raises(InvalidRequest, match="may not write into"):
        change(folder, "a.yaml", "x")


def test_a_file_system_that_is_read_only_is_named() -> None:
    found = [
        line.split()[1]
        for line in Path("/proc/mounts").read_text().splitlines()
        if ",ro," in f",{line.split()[3]},"
    ]
    folders = [Path(name) for name in found if os.path.isdir(name)]
    if not folders:
        pytest.skip("nothing is mounted read-only here")
    assert PolicyFolder(folders[0]).locked == f"{folders[0]} is on a file system that is read-only."


def test_one_change_at_a_time(folder: PolicyFolder) -> None:
    other = PolicyFolder(folder.path)
    with folder.alone(), pytest.raises(InvalidRequest, match="Another change"), other.alone():
        pass
    with other.alone():
        pass
