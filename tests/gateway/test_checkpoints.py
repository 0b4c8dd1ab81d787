"""Folders of checkpoints and drafters, and the errors of `penstock check`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from backend.digests import check_digests
from backend.errors import CheckpointError
from gateway import checkpoints
from gateway.checkpoints import check_drafters, checkpoint_folder, drafter_folders, expected_digests
from policies.document import AdapterEntry, DrafterEntry, Drafters, EngineModel, Speculative


@pytest.fixture
def builtin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of weights with one checkpoint and something else."""
    for name in ("one", "adapters"):
        (tmp_path / name).mkdir()
    (tmp_path / "one" / "config.json").write_text("{}")
    monkeypatch.setattr(checkpoints, "BUILTIN_FOLDER", tmp_path)
    return tmp_path


def test_builtin_and_path(builtin: Path) -> None:
    assert checkpoint_folder("builtin:one") == checkpoint_folder(str(builtin / "one")) == builtin / "one"


@pytest.mark.parametrize("name", ["two", "adapters", "../one", ""])
def test_no_such_builtin(builtin: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint 'builtin:.*known: one$"):
        checkpoint_folder(f"builtin:{name}")


def test_what_ships_with_penstock_has_its_manifests_digests() -> None:
    engine = EngineModel(
        checkpoint="builtin:pico-small", adapters={"german": AdapterEntry(path="builtin:german")}
    )
    found = expected_digests(engine)
    check_digests(found)
    names = {str(Path(path).relative_to(checkpoints.BUILTIN_FOLDER)) for path in found}
    assert {"pico-small/model.safetensors", "pico-small/tokenizer.json"} < names
    assert "adapters/german/adapter_model.safetensors" in names and "adapters/si/README.md" not in names


def test_a_policys_digests_are_those_of_its_checkpoint(
    builtin: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    own = tmp_path_factory.mktemp("own")
    engine = EngineModel(checkpoint=str(own), sha256={"model.safetensors": "0" * 64})
    assert expected_digests(engine) == {str(own / "model.safetensors"): "0" * 64}
    with pytest.raises(CheckpointError, match=r"MANIFEST.json is missing or broken"):
        expected_digests(EngineModel(checkpoint="builtin:one"))


def test_no_such_folder(builtin: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a folder"):
        checkpoint_folder(str(builtin / "one" / "config.json"))


def write(folder: Path, vocabulary: dict[str, int], **config: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"vocab_size": len(vocabulary), **config}))
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
    return folder


def engine(checkpoint: Path, draft: Path | None, drafter: str = "none") -> EngineModel:
    entry = DrafterEntry(path=str(draft)) if draft is not None else None
    speculative = Speculative(drafter=drafter, drafters=Drafters(draft_model=entry))  # type: ignore[arg-type]
    return EngineModel(checkpoint=str(checkpoint), speculative=speculative)


def test_a_draft_model_of_the_same_vocabulary_is_fine(tmp_path: Path) -> None:
    target, draft = write(tmp_path / "target", {"a": 0, "b": 1}), write(tmp_path / "d", {"a": 0, "b": 1})
    chosen = engine(target, draft, "draft_model")
    check_drafters(chosen)
    assert drafter_folders(chosen) == {"draft_model": draft}
    assert drafter_folders(engine(target, None)) == {}


def test_a_draft_model_has_no_folder_by_default(tmp_path: Path) -> None:
    target = write(tmp_path / "target", {"a": 0})
    with pytest.raises(CheckpointError, match=r"give its folder as speculative\.drafters\.draft_model\.path"):
        drafter_folders(engine(target, None, "draft_model"))


def test_wrong_weights_are_named(tmp_path: Path) -> None:
    target = write(tmp_path / "target", {"a": 0, "b": 1})
    with pytest.raises(CheckpointError, match="is not a folder"):
        check_drafters(engine(target, tmp_path / "nowhere"))
    with pytest.raises(CheckpointError, match=r"vocabulary of 1 tokens.*one of 2; choose a draft model"):
        check_drafters(engine(target, write(tmp_path / "smaller", {"a": 0})))
    with pytest.raises(CheckpointError, match="hold different vocabularies; choose a draft model"):
        check_drafters(engine(target, write(tmp_path / "other", {"a": 1, "b": 0})))


def test_a_head_is_in_the_checkpoints_folder_and_matches_its_weights(tmp_path: Path) -> None:
    target = write(tmp_path / "target", {"a": 0})
    (target / "model.safetensors").write_bytes(b"weights")
    chosen = EngineModel(checkpoint=str(target), speculative=Speculative(drafter="eagle"))
    own = target / "heads" / "eagle"
    assert drafter_folders(chosen) == {"eagle": own}
    with pytest.raises(CheckpointError, match=r"heads/eagle/config\.json does not exist; give the folder"):
        check_drafters(chosen)
    digest = hashlib.sha256(b"weights").hexdigest()
    write(own, {}, drafter="eagle", target_sha256=digest)
    check_drafters(chosen)
    (target / "model.safetensors").write_bytes(b"others")
    with pytest.raises(CheckpointError, match=rf"with SHA-256 '{digest}', but .* train it again for these"):
        check_drafters(chosen)
