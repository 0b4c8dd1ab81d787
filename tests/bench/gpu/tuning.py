"""Candidates for the rows of a kernel's blocks.json: compiled ahead, or measured in a step on a GPU."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from backend.kernels import launch
from tests.backend.kernels.ahead import MOST_SHARED_BYTES, MachineCode, absent_device, machine_code
from tests.backend.kernels.cases import Launch, cases_of
from tests.bench.gpu.plan import DENSE, SPARSE
from tests.bench.gpu.profiled import Steps, kernel_names
from tests.bench.gpu.sections import SECTIONS
from tests.bench.gpu.shapes import MODELS
from tests.bench.gpu.trace import Work, only_recorded

Row = dict[str, Any]
_FASTER = 0.98
_MOST_WARPS, _MOST_STAGES = 8, 4


@dataclass(frozen=True)
class Candidate:
    """A row of blocks.json, without what it is for."""

    sizes: tuple[tuple[str, int], ...]
    warps: int
    stages: int

    def row(self, shape: str, arch: int) -> Row:
        """The row as it is written."""
        asked = {"shape": shape, "dtype": "bfloat16", "arch": arch}
        return {**asked, "sizes": dict(self.sizes), "warps": self.warps, "stages": self.stages}

    def neighbours(self) -> list[Candidate]:
        """Candidates that differ in one choice: a size or the warps, twice or half as many, or one stage."""
        warps = [count for count in (self.warps // 2, self.warps * 2) if 1 <= count <= _MOST_WARPS]
        stages = [count for count in (self.stages - 1, self.stages + 1) if 1 <= count <= _MOST_STAGES]
        sizes = [
            (*self.sizes[:index], (name, other), *self.sizes[index + 1 :])
            for index, (name, size) in enumerate(self.sizes)
            for other in (size // 2, size * 2)
            if other >= 1
        ]
        return [
            *(replace(self, warps=count) for count in warps),
            *(replace(self, stages=count) for count in stages),
            *(replace(self, sizes=each) for each in sizes),
        ]


class _Spy(dict[str, Any]):
    """A row that fits nothing, and keeps the classes of shapes that were asked for, in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[str] = []
        self._shape = ""

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - as dict's
        """What is asked for, but for another architecture."""
        self._shape = default if key == "shape" else self._shape
        if key == "arch" and self._shape not in self.shapes:
            self.shapes.append(self._shape)
        return -1 if key == "arch" else default if key == "shape" else "bfloat16"


@contextlib.contextmanager
def first_row(op: str, row: Row) -> Iterator[None]:
    """Let `row` come before the rows of the op's blocks.json."""
    rows = launch._rows
    launch._rows = lambda asked: [row, *rows(asked)] if asked == op else rows(asked)
    launch.blocks.cache_clear()
    try:
        yield
    finally:
        launch._rows = rows
        launch.blocks.cache_clear()


def shapes_of(op: str, call: Callable[[], object]) -> list[str]:
    """The classes of shapes that a call asks for in bfloat16."""
    spy = _Spy()
    with first_row(op, spy):
        call()
    return spy.shapes


def in_use(op: str, shape: str) -> Candidate:
    """What blocks.json says for the current device."""
    found = launch.blocks(op, shape, torch.bfloat16)
    return Candidate(tuple(found.sizes.items()), found.warps, found.stages)


def planned(op: str, arch: int) -> Iterator[Row]:
    """The row in use and its neighbours for every class of shapes, compiled for an architecture."""
    seen: set[str] = set()
    for case in cases_of(op).launches:
        if torch.bfloat16 not in case.dtypes:
            continue
        with only_recorded(arch, lambda *_, **__: None):
            shapes = shapes_of(op, lambda case=case: case.run(torch.bfloat16))
            rows = {shape: in_use(op, shape) for shape in shapes if shape not in seen}
        seen |= set(rows)
        for shape, now in rows.items():
            for candidate in (now, *now.neighbours()):
                marks = {"in use": "yes" if candidate == now else ""}
                yield (
                    _named(case.name, shape, candidate)
                    | _compiled(op, case, candidate.row(shape, arch))
                    | marks
                )


def _named(work: str, shape: str, candidate: Candidate) -> Row:
    sizes = " ".join(f"{name}={size}" for name, size in candidate.sizes)
    return {
        "work": work,
        "shape": shape,
        "sizes": sizes,
        "warps": candidate.warps,
        "stages": candidate.stages,
    }


def _compiled(op: str, case: Launch, row: Row) -> Row:
    """The most that any of the case's kernels takes."""
    compiled: list[Any] = []
    try:
        with first_row(op, row), absent_device(row["arch"], compiled):
            case.run(torch.bfloat16)
        codes: list[MachineCode] = [
            machine_code(case.name, each, row["arch"]) for each in dict.fromkeys(compiled)
        ]
    except Exception as error:  # noqa: BLE001 - the compiler raises its own types, and asserts
        return {"fits": f"no: {str(error).strip().splitlines()[-1] if str(error) else type(error).__name__}"}
    shared, stack = max(code.shared_bytes for code in codes), max(code.stack_bytes for code in codes)
    spills = sum(code.spills for code in codes)
    fits = not stack and not spills and shared <= MOST_SHARED_BYTES[row["arch"]]
    registers = max(code.registers for code in codes)
    told = {"registers": registers, "shared bytes": shared, "stack": stack, "spills": spills}
    return told | {"fits": "yes" if fits else "no"}


def measured(op: str) -> Iterator[Row]:
    """The fastest rows for every class of shapes that steps ask for, on the GPU that is here."""
    arch, seen, names = launch.architecture(), set[str](), kernel_names((op,))
    for model, work in _works(op):
        steps = Steps(MODELS[model], work, 2)
        for shape in shapes_of(op, steps.run):
            if shape not in seen:
                seen.add(shape)
                yield {"work": str(work), **_climb(op, shape, arch, partial(_us, steps, names))}


def _works(op: str) -> list[tuple[str, Work]]:
    """Steps that launch the op: those of its sections, of one stream and of a prompt."""
    own = [section for section in SECTIONS if op in section.ops]
    model = SPARSE if any(section.needs_experts for section in own) else DENSE
    works = [section.work for section in own]
    return [(model, work) for work in dict.fromkeys((*works, Work(1), Work(1, 2048, 2048), Work(8, 8, 4096)))]


def _us(steps: Steps, names: re.Pattern[str]) -> float:
    return sum(value for name, value in steps.kernel_us().items() if names.fullmatch(name))


def _climb(op: str, shape: str, arch: int, time_us: Callable[[], float]) -> Row:
    """From the row in use to the fastest neighbour, as long as one is faster."""
    now = best = in_use(op, shape)
    times = {now: time_us()}
    while True:
        for candidate in best.neighbours():
            if candidate not in times:
                with first_row(op, candidate.row(shape, arch)):
                    times[candidate] = _time_or_none(time_us)
        fastest = min(times, key=lambda each: times[each])
        if times[fastest] >= _FASTER * times[best]:
            break
        best = fastest
    row = best.row(shape, arch) if best != now else None
    return {"shape": shape, "µs now": times[now], "µs best": times[best], "tried": len(times), "row": row}


def _time_or_none(time_us: Callable[[], float]) -> float:
    """Infinite for a candidate that does not compile, or needs more than the card has."""
    try:
        return time_us()
    except Exception:  # noqa: BLE001 - the compiler and the driver raise their own types
        return float("inf")
