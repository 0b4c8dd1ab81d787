"""Where adapters lie on disk, and who may have which of them loaded while the gateway runs."""

from __future__ import annotations

from pathlib import Path

from backend.errors import CheckpointError
from gateway.auth import Principal
from gateway.checkpoints import BUILTIN_FOLDER
from gateway.errors import Forbidden, InvalidRequest
from policies.document import AdapterLoading

BUILTIN_ADAPTERS = BUILTIN_FOLDER / "adapters"
_PREFIX = "builtin:"
_FILES = ("adapter_config.json", "adapter_model.safetensors")


def adapter_folder(path: str) -> Path:
    """The folder of an adapter that a policy names, `builtin:NAME` or a path. Raises CheckpointError."""
    if not path.startswith(_PREFIX):
        return Path(path).expanduser().resolve()
    name = path.removeprefix(_PREFIX)
    known = builtin_adapters()
    if name not in known:
        raise CheckpointError(f"no adapter {path!r} ships with Penstock; known: {', '.join(known) or 'none'}")
    return BUILTIN_ADAPTERS / name


def builtin_adapters() -> list[str]:
    """The adapters that ship with Penstock."""
    return sorted(path.parent.name for path in BUILTIN_ADAPTERS.glob("*/adapter_config.json"))


def check_may_load(principal: Principal, loading: AdapterLoading | None) -> AdapterLoading:
    """Raise Forbidden unless the policy lets this principal load and unload adapters."""
    if loading is None or principal.tenant not in loading.principals:
        raise Forbidden(
            f"The policies do not let {principal.tenant!r} load or unload adapters. They would name it in "
            "engine.adapter_loading.principals of the base model.",
            code="adapter_loading_forbidden",
        )
    return loading


def loadable_folder(path: str, loading: AdapterLoading) -> Path:
    """The real folder behind a caller's path. Raises InvalidRequest when it is not in an allowed one.

    Links are followed before the comparison, those of the files as well, and what does not exist is refused
    in the same words as what is not allowed: nobody learns what else lies on the machine.
    """
    if path.startswith(_PREFIX):
        if path.removeprefix(_PREFIX) in builtin_adapters():
            return BUILTIN_ADAPTERS / path.removeprefix(_PREFIX)
        raise _refused(path)
    try:
        folder = Path(path)
        allowed = [Path(each).resolve() for each in loading.folders]
        real = [folder.resolve(strict=True), *((folder / name).resolve(strict=True) for name in _FILES)]
    except (OSError, ValueError, RuntimeError):  # missing, a NUL in the name, a loop of links
        raise _refused(path) from None
    is_inside = any(all(each.is_relative_to(root) for each in real) for root in allowed)
    if not folder.is_absolute() or not is_inside:
        raise _refused(path)
    return real[0]


def _refused(path: str) -> InvalidRequest:
    return InvalidRequest(
        f"{path[:256]!r} is no adapter that may be loaded: give the absolute path of a folder with "
        f"{' and '.join(_FILES)} inside of those that the policy's adapter_loading.folders name.",
        param="lora_path",
        code="adapter_not_found",
    )
