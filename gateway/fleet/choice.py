"""Which of a model's targets gets a call: the less loaded of two, among those that are healthy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.fleet.target import Target


def healthy(targets: Sequence[Target]) -> list[Target]:
    """The targets that may be asked: at most half of them are left out, none where all are.

    A target that only fails comes back before one that refuses the key or limits the rate.
    """
    out = [target for target in targets if target.health.trouble is not None]
    if len(out) == len(targets):
        return list(targets)
    failing = sorted(
        (target for target in out if target.health.trouble == "failing"),
        key=lambda target: target.health.out_until_s,
    )
    back = failing[: max(0, len(out) - len(targets) // 2)]
    return [target for target in targets if target not in out or target in back]


def less_loaded(targets: Sequence[Target], draw: Callable[[], float]) -> Target:
    """The less loaded of two that are drawn; `draw` gives numbers from 0 to below 1.

    One that was never measured gets a single call at a time, and is not compared with others.
    """
    new = [target for target in targets if not target.latency.is_measured]
    idle = [target for target in new if not target.num_running]
    if idle:
        return idle[int(draw() * len(idle))]
    left = [target for target in targets if target.latency.is_measured] or list(targets)
    first = left.pop(int(draw() * len(left)))
    if not left:
        return first
    second = left[int(draw() * len(left))]
    return min(first, second, key=Target.load)
