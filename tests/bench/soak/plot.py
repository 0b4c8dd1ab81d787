"""A picture of a soak: memory, file descriptors and latency over time."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path

import matplotlib.pyplot as plt

from tests.bench import load
from tests.bench.soak.course import Course

NUM_WINDOWS = 60
SHOWN_KINDS = ("stream", "adapter", "embeddings", "upstream")


def plot(course: Course, path: Path) -> None:
    """Write a PNG or SVG of the course to `path`."""
    figure, (memory, files, latency) = plt.subplots(3, 1, figsize=(10, 10), sharex=True, layout="constrained")
    start_s = course.snapshots[0].time_s
    minutes = [(each.time_s - start_s) / 60 for each in course.snapshots]
    for role in course.before.processes:
        seen = [each.processes.get(role) for each in course.snapshots]
        memory.plot(minutes, [one and one.resident_bytes / 2**20 for one in seen], label=role)
        files.plot(minutes, [one and one.num_files for one in seen], label=role)
    for kind in SHOWN_KINDS:
        latency.plot(*_medians(course, kind, start_s), label=kind)
    memory.set(ylabel="resident memory, MiB", ylim=(0, None))
    files.set(ylabel="open file descriptors", ylim=(0, None))
    latency.set(ylabel="median time of a request, ms", xlabel="minutes", ylim=(0, None))
    for axes in (memory, files, latency):
        axes.axvline((course.before.time_s - start_s) / 60, color="grey", linestyle="--", linewidth=1)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
        axes.grid(alpha=0.3)
    memory.set_title(f"{len(course.sent):,} requests; dashed: end of the warm-up", loc="left")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _medians(course: Course, kind: str, start_s: float) -> tuple[list[float], list[float]]:
    """Minutes and medians in ms of `NUM_WINDOWS` windows."""
    window_s = (course.after.time_s - start_s) / NUM_WINDOWS
    windows: defaultdict[int, list[float]] = defaultdict(list)
    for each in course.sent:
        if each.kind == kind:
            windows[int((each.started_s - start_s) / window_s)].append(each.total_s * 1e3)
    medians = [load.percentile(windows[n], 0.5) if windows[n] else math.nan for n in range(NUM_WINDOWS)]
    return [(n + 0.5) * window_s / 60 for n in range(NUM_WINDOWS)], medians
