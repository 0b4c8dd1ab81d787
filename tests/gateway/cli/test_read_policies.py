"""A gateway's policies are read again when their files are at rest, and not when one of them was cut."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from gateway.admin.policy_files import JOURNAL, PolicyFolder
from gateway.cli.read_policies import PolicyReader
from gateway.processes import policy_watch
from gateway.settings import Settings
from policies.document import Policies
from policies.errors import PolicyError
from policies.load import load_policies

MODELS = (
    "models:\n  one: {upstream: {base_url: 'http://h/v1', model: first}}\nroutes:\n  auto: {model: one}\n"
)
MORE = "models:\n  two: {upstream: {base_url: 'http://h/v1'}}\n"


@pytest.fixture(autouse=True)
def short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests need not wait as long as users do."""
    monkeypatch.setattr(policy_watch, "REST_S", 0.1)
    monkeypatch.setattr(policy_watch, "LONG_REST_S", 0.2)


def reader(folder: Path) -> PolicyReader:
    """A reader of files that were written a while ago."""
    (folder / "a.yaml").write_text(MODELS)
    (folder / "b.yaml").write_text(MORE)
    made = PolicyReader(folder, lambda policies: (policies, Settings()))
    made.first()
    return made


def models(read: tuple[Policies, Settings]) -> list[str]:
    return sorted(read[0].models)


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (0, "b.yaml: is empty now; to take away what it defined, delete the file or leave a comment"),
        (len(MORE) - 2, "b.yaml:2: ends in the middle of a line, after 50 of the 52 bytes|is not valid YAML"),
        (len("models:\n  two: {upstream"), "b.yaml:.*"),
    ],
)
def test_a_cut_file_is_refused(tmp_path: Path, kept: int, message: str) -> None:
    made = reader(tmp_path)
    (tmp_path / "b.yaml").write_text(MORE[:kept])
    for _ in range(2):  # asking again does not make it right
        with pytest.raises(PolicyError, match=message):
            made.again()
    (tmp_path / "b.yaml").write_text(MORE)
    assert models(made.again()) == ["one", "two"]


def test_a_valid_beginning_that_ends_inside_a_line_is_refused(tmp_path: Path) -> None:
    made = reader(tmp_path)
    path = tmp_path / "a.yaml"
    long = "models:\n  one:\n    upstream:\n      base_url: http://host:8000/v1\n"
    path.write_text(long)
    made.again()
    path.write_text(long[:-5])
    with pytest.raises(PolicyError, match=r"a.yaml:4: ends in the middle of a line, after 60 of"):
        made.again()
    path.write_text(long[:-5] + "\n")  # on purpose
    assert made.again()[0].models["one"].upstream is not None


def test_taking_away_whole_lines_or_files_is_no_cut(tmp_path: Path) -> None:
    made = reader(tmp_path)
    (tmp_path / "a.yaml").write_text(MODELS[: MODELS.index("routes")])
    assert not made.again()[0].routes
    (tmp_path / "b.yaml").unlink()
    assert models(made.again()) == ["one"]
    (tmp_path / "a.yaml").write_text("# nothing\n")
    with pytest.raises(PolicyError, match="defines no model, so nothing could be served"):
        made.again()


def test_a_file_that_is_written_in_pieces_is_read_when_it_is_complete(tmp_path: Path) -> None:
    made = reader(tmp_path)
    pieces = [*MORE.splitlines(keepends=True), "  four: {upstream: {base_url: ", "'http://h/v1'}}\n"]

    def write() -> None:
        with (tmp_path / "b.yaml").open("w") as file:
            for piece in pieces:
                file.write(piece)
                file.flush()
                began.set()
                time.sleep(policy_watch.REST_S / 2)  # as a slow writer does

    began = threading.Event()
    thread = threading.Thread(target=write)
    thread.start()
    began.wait()
    assert models(made.again()) == ["four", "one", "two"]
    thread.join()


@pytest.mark.parametrize("is_served", [True, False])
def test_an_applied_change_is_kept_once_it_is_served(tmp_path: Path, is_served: bool) -> None:
    """Its worker was killed during the reload; an operator edits another file afterwards."""
    made, folder, path = reader(tmp_path), PolicyFolder(tmp_path), tmp_path / "b.yaml"
    more = f"{MORE}  three: {{upstream: {{base_url: 'http://h/v1'}}}}\n".encode()
    with folder.alone():
        folder.write({path: MORE.encode()}, {path: more})
        assert models(made.again()) == ["one", "three", "two"]
        if is_served:
            made.on_served()
            assert (tmp_path / JOURNAL).exists(), "it is its worker's while that lives"
    (tmp_path / "c.yaml").write_text("# an edit\n")
    assert models(made.again()) == ["one", *["three"] * is_served, "two"]
    assert not (tmp_path / JOURNAL).exists()


def test_an_applied_change_is_settled_before_another_worker_or_a_start_could_undo_it(tmp_path: Path) -> None:
    made, folder, path = reader(tmp_path), PolicyFolder(tmp_path), tmp_path / "b.yaml"
    with folder.alone():
        folder.write({path: MORE.encode()}, {path: b"# none\n"})
        made.again()
    made.on_served()
    assert not (tmp_path / JOURNAL).exists() and path.read_text() == "# none\n"


def test_half_of_a_change_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, folder = reader(tmp_path), PolicyFolder(tmp_path)
    path = tmp_path / "b.yaml"
    folder.write({path: MORE.encode()}, {path: b"# none\n"})

    def fail(opened: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        made.on_served()  # of what was read before
        for read in (made.again, made.first):
            with pytest.raises(PolicyError, match=r"b.yaml: could not be put back"):
                read()
    assert models(made.first()) == ["one", "two"] and path.read_text() == MORE


def test_a_start_needs_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = reader(tmp_path)
    (tmp_path / JOURNAL).touch()

    def flock(opened: int, flags: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", flock)
    assert models(made.first()) == ["one", "two"]


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    made = reader(folder)
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(PolicyError, match=r"holds no \*.yaml file"):
        made.again()
    os.rmdir(folder)
    with pytest.raises(PolicyError, match="is neither a folder"):
        made.again()


def test_a_folder_whose_models_are_left_out_is_read_again_without_their_extras(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "a.yaml").write_text("models:\n  own: {engine: {checkpoint: 'builtin:pico-small'}}\n")
    flags = tmp_path / "flags.yaml"
    flags.write_text(MODELS)
    upstream = load_policies(flags).models
    flags.unlink()

    def complete(policies: Policies) -> tuple[Policies, Settings]:
        return msgspec.structs.replace(policies, models=upstream), Settings()

    refusing = PolicyReader(tmp_path, complete)
    with pytest.raises(PolicyError, match=r"a.yaml:2:9: models.own.engine needs torch"):
        refusing.first()
    leaving_out = PolicyReader(tmp_path, complete, checks_extras=False)
    assert models(leaving_out.first()) == models(leaving_out.again()) == ["one"]


def test_a_start_and_a_check_wait_for_no_module_that_only_probes_need() -> None:
    code = (
        "import sys, gateway.cli.check_policies, gateway.cli.run_gateway, gateway.cli.start\n"
        "print([name for name in ('gateway.pipeline', 'starlette', 'httpx2') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stdout == "[]\n", ended.stdout + ended.stderr
