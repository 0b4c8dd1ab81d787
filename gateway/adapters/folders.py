"""Which folders an adapter may be loaded from while the gateway runs, and by whom."""

from __future__ import annotations

from pathlib import Path

from gateway import checkpoints
from gateway.auth import Principal
from gateway.errors import Forbidden, InvalidRequest
from policies.document import AdapterLoading

_FILES = ("adapter_config.json", "adapter_model.safetensors")


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
    """The real folder of a caller's path. Raises InvalidRequest when it is not in an allowed one.

    Symbolic links are resolved before the comparison, those of the files too. A missing folder gets the same
    message as a forbidden one, so that callers cannot probe the file system.
    """
    if path.startswith(checkpoints.BUILTIN_PREFIX):
        name = path.removeprefix(checkpoints.BUILTIN_PREFIX)
        if name in checkpoints.builtin_adapters():
            return checkpoints.BUILTIN_ADAPTERS / name
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
