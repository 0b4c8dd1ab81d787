"""What every head must do: say what the reference in backend.pico.drafters says, and change no answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from backend.models.loaded import LoadedModel
from backend.pico.batches import make_batch
from backend.pico.drafters.drafter import Drafter
from backend.pico.drafters.mixture_of_attentions import MixtureConfig, MixtureOfAttentions
from backend.pico.drafters.store import load_drafter, new_drafter, save_drafter
from backend.pico.drafters.target import Target, load_target
from tests.backend.engine.driving import run, texts
from tests.backend.speculative.model_targets import load, new_engine, requests, write_model
from tests.backend.speculative.recording import Said


@dataclass(frozen=True)
class Pair:
    """A target and a head of it, as the engine and as the reference have them."""

    name: str
    folder: Path
    model: LoadedModel
    target: Target
    drafter: Drafter

    def check(self, said: list[Said], least: int) -> None:
        """Every draft is the reference's, and there were enough of them."""
        drafts = [each for each in said if each.draft]
        assert len(drafts) >= least
        for each in drafts[:: len(drafts) // 16 + 1]:
            ids = each.tokens + each.draft
            view = self.target.observe(make_batch([(ids, [True] * len(ids))], [0]))
            wanted = self.drafter.drafts(self.target, view)[0, len(each.tokens) - 2, :, 0]
            assert each.draft == wanted[: len(each.draft)].tolist()
            assert len(each.draft) == min(each.k, self.drafter.length)


def make_pair(
    folder: Path,
    name: str,
    kind: str = "qwen3_moe",
    target_layers: int = 0,
    **changes: Any,  # noqa: ANN401
) -> Pair:
    """Random, so wrong most of the time; whatever starts as the identity is moved away from it.

    `target_layers`: of a Mixture of Attentions.
    """
    write_model(folder, kind, **changes)
    target = load_target(folder)
    drafter = new_drafter(name, target, 3)
    if target_layers:
        config = replace(MixtureConfig.of_target(target), target_layers=target_layers)
        drafter = MixtureOfAttentions(config)
        drafter.start_from(target)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.add_(0.4 * torch.randn(parameter.shape))
    own = folder / "heads" / name
    save_drafter(drafter, folder, own)
    return Pair(name, own, load(folder), target, load_drafter(own))


def say_what_the_reference_says(pair: Pair) -> None:
    """Together, with prefixes that the target knows and the head has never seen, and again."""
    asked = requests()
    engine, recording = new_engine(pair.model, pair.name, pair.folder)
    assert recording is not None
    plain = texts(new_engine(pair.model)[0], asked)
    outputs = run(engine, asked)
    assert [[t for o in found for t in o.token_ids] for found in outputs.values()] == plain
    assert recording.most_together == 4
    drafted = [(o.num_drafted, o.num_accepted) for found in outputs.values() for o in found]
    assert any(0 < accepted < num for num, accepted in drafted), "rounds with partial acceptance"
    assert texts(engine, asked) == plain, "with prefix hits"
    pair.check(recording.said, 30)


def say_it_when_preempted_in_small_chunks(pair: Pair) -> None:
    """Nothing but the pages says what was computed before."""
    asked = requests(max_tokens=40)
    engine, recording = new_engine(
        pair.model, pair.name, pair.folder, num_pages=12, max_batch_tokens=24, max_running=4
    )
    assert recording is not None
    assert texts(engine, asked) == texts(new_engine(pair.model)[0], asked)
    assert engine.scheduler.preemptions_total > 0
    pair.check(recording.said, 20)
    assert engine.kv.free_pages == 12
