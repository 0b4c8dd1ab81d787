"""Where the weights that the policies name are on disk: checkpoints, drafters and LoRA adapters."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from backend.errors import CheckpointError
from backend.speculative.weights_check import MODEL_DRAFTERS, check_folder, default_folder
from policies.document import DrafterEntry, EngineModel

BUILTIN_FOLDER = Path(__file__).parents[1] / "backend" / "pico" / "weights"
BUILTIN_ADAPTERS = BUILTIN_FOLDER / "adapters"
BUILTIN_PREFIX = "builtin:"


def checkpoint_folder(checkpoint: str) -> Path:
    """Return the folder of an engine's checkpoint, `builtin:NAME` or a path. Raises CheckpointError."""
    if not checkpoint.startswith(BUILTIN_PREFIX):
        folder = Path(checkpoint).expanduser().resolve()
        if not folder.is_dir():
            raise CheckpointError(
                f"checkpoint {str(folder)!r} is not a folder: give the folder that holds config.json"
            )
        return folder
    name = checkpoint.removeprefix(BUILTIN_PREFIX)
    # `weights/` also holds adapters, which no engine can serve alone.
    known = sorted(path.parent.name for path in BUILTIN_FOLDER.glob("*/config.json"))
    if name not in known:
        raise CheckpointError(f"no checkpoint {checkpoint!r} ships with Penstock; known: {', '.join(known)}")
    return BUILTIN_FOLDER / name


def drafter_entries(engine: EngineModel) -> dict[str, DrafterEntry]:
    """The drafters with weights that the policy lists, and the default one."""
    speculative = engine.speculative
    entries: dict[str, DrafterEntry | None] = msgspec.structs.asdict(speculative.drafters)
    if speculative.drafter in MODEL_DRAFTERS and entries[speculative.drafter] is None:
        entries[speculative.drafter] = DrafterEntry()
    return {name: entry for name, entry in entries.items() if entry is not None}


def drafter_folders(engine: EngineModel) -> dict[str, Path]:
    """Folders by drafter name. Raises CheckpointError."""
    checkpoint = checkpoint_folder(engine.checkpoint)
    return {
        name: default_folder(name, checkpoint) if entry.path is None else checkpoint_folder(entry.path)
        for name, entry in drafter_entries(engine).items()
    }


def check_drafters(engine: EngineModel) -> None:
    """Raise CheckpointError unless every drafter's weights exist and fit the checkpoint."""
    for name, folder in drafter_folders(engine).items():
        check_folder(name, checkpoint_folder(engine.checkpoint), folder)


def adapter_folder(path: str) -> Path:
    """The folder of an adapter that a policy names, `builtin:NAME` or a path. Raises CheckpointError."""
    if not path.startswith(BUILTIN_PREFIX):
        return Path(path).expanduser().resolve()
    name = path.removeprefix(BUILTIN_PREFIX)
    known = builtin_adapters()
    if name not in known:
        raise CheckpointError(f"no adapter {path!r} ships with Penstock; known: {', '.join(known) or 'none'}")
    return BUILTIN_ADAPTERS / name


def expected_digests(engine: EngineModel) -> dict[str, str]:
    """SHA-256 by path: of the policy's `sha256`, and of all files that ship with Penstock.

    Raises CheckpointError.
    """
    checkpoint = checkpoint_folder(engine.checkpoint)
    folders = {checkpoint, *drafter_folders(engine).values()}
    folders |= {adapter_folder(entry.path) for entry in engine.adapters.values()}
    found: dict[str, str] = {}
    if any(folder.is_relative_to(BUILTIN_FOLDER) for folder in folders):
        found = {str(path): digest for path, digest in _builtin_digests().items() if path.parent in folders}
    return found | {str(checkpoint / name): digest for name, digest in engine.sha256.items()}


def _builtin_digests() -> dict[Path, str]:
    manifest = BUILTIN_FOLDER / "MANIFEST.json"
    try:
        files = json.loads(manifest.read_text(encoding="utf-8"))["files"]
        return {BUILTIN_FOLDER / name: str(entry["sha256"]) for name, entry in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{manifest} is missing or broken; install Penstock again") from None


def builtin_adapters() -> list[str]:
    """Names of the adapters that ship with Penstock."""
    return sorted(path.parent.name for path in BUILTIN_ADAPTERS.glob("*/adapter_config.json"))
