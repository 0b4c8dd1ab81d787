"""Machine code of Triton's launches for GPUs that are not there: python -m tests.backend.kernels.ahead OP.

A stand-in driver says which GPU it is, and every launch compiles its kernel without loading it. Prints one
JSON record of each kernel and architecture.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from backend.kernels import launch
from tests.backend.kernels.cases import Launch, cases_of

ARCHITECTURES = (80, 90, 100)
MOST_SHARED_BYTES = {80: 163 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10}
_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_TENSOR_CORES = r"HMMA|HGMMA|QGMMA|IMMA|IGMMA|UTC\w*MMA"


class _AbsentDevice:
    """What Triton asks of a driver before it launches."""

    def __init__(self, arch: int) -> None:
        self._arch = arch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._arch, 32)

    def get_current_device(self) -> int:
        return self._arch  # a kernel cache for each architecture

    def get_current_stream(self, device: int) -> int:
        return 0


@dataclass(frozen=True)
class MachineCode:
    """What was compiled for one launch."""

    case: str
    kernel: str
    arch: int
    registers: int
    stack_bytes: int
    shared_bytes: int
    wide_loads: int  # of 128 bits
    tensor_cores: list[str]  # instructions
    spills: int

    def check(self, case: Launch) -> None:
        """Raise AssertionError if the code is not what the case asks for."""
        assert self.stack_bytes == self.spills == 0, self
        assert self.shared_bytes <= MOST_SHARED_BYTES[self.arch], self
        assert self.wide_loads or self.kernel in case.narrow, self
        multiplies = self.kernel in case.tensor_cores and not self.case.endswith(
            "float32"
        )  # in full precision
        assert bool(self.tensor_cores) == multiplies, self
        if case.is_large and multiplies and self.arch >= 90:  # a warp group's instructions
            assert any(name.startswith(("HGMMA", "QGMMA", "IGMMA", "UTC")) for name in self.tensor_cores), (
                self
            )


@contextlib.contextmanager
def absent_device(arch: int, compiled: list[Any]) -> Iterator[None]:
    """Launches compile for this architecture and are kept in `compiled`."""
    run, active = JITFunction.run, driver._active

    def compile_only(self, *args, grid, warmup, **options):  # noqa: ANN001, ANN002, ANN003, ANN202
        compiled.append(run(self, *args, grid=grid, warmup=True, **options))
        return compiled[-1]

    JITFunction.run = compile_only
    driver.set_active(_AbsentDevice(arch))
    launch.blocks.cache_clear()
    try:
        yield
    finally:
        JITFunction.run = run
        driver._active = active


def machine_code(case: str, kernel: Any, arch: int) -> MachineCode:  # noqa: ANN401 - Triton has no types
    registers, stack_bytes, names = _contents(kernel.asm["cubin"])
    return MachineCode(
        case,
        kernel.metadata.name,
        arch,
        registers,
        stack_bytes,
        kernel.metadata.shared,
        sum(names[name] for name in names if re.match(r"LD(G|GSTS)\.E.*128|UBLK|UTMA", name)),
        sorted({name.split(".")[0] for name in names if re.match(_TENSOR_CORES, name)}),
        sum(names[name] for name in names if re.match(r"LDL|STL", name)),
    )


@functools.cache  # cases share kernels
def _contents(cubin: bytes) -> tuple[int, int, Counter[str]]:
    """Registers, bytes of the stack, and how often there is each instruction."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        use, text = _output("cuobjdump", "-res-usage", file.name), _output("nvdisasm", "-c", file.name)
    found = re.search(r"REG:(\d+) STACK:(\d+)", use)
    assert found is not None, use
    names = re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)", text, re.MULTILINE)
    return int(found[1]), int(found[2]), Counter(names)


def _output(tool: str, *options: str) -> str:
    return subprocess.run([_TOOLS / tool, *options], capture_output=True, text=True, check=True).stdout


def codes(op: str, arch: int) -> Iterator[tuple[Launch, MachineCode]]:
    """Compile all launches of `op` for one architecture."""
    for case in cases_of(op).launches:
        for dtype in case.dtypes:
            compiled: list[Any] = []
            with absent_device(arch, compiled):
                case.run(dtype)
            assert compiled, f"{case.name} launched nothing"
            name = f"{case.name} {str(dtype).removeprefix('torch.')}"
            for kernel in dict.fromkeys(compiled):  # launched again: the same
                yield case, machine_code(name, kernel, arch)


def checked(op: str, architectures: Sequence[int]) -> list[MachineCode]:
    """Compile all launches of `op`, print their records and check them."""
    found = []
    for arch in architectures:
        for case, code in codes(op, arch):
            print(json.dumps(asdict(code)), flush=True)
            code.check(case)
            found.append(code)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    checked(sys.argv[1], ARCHITECTURES)
