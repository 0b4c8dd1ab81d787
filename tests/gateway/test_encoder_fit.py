from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from backend.classifiers.weights import read_card
from backend.encoder.checkpoint import BUILTIN
from backend.encoder.identity import identity_of
from cache.classifiers import freshness, needs_context
from gateway.encoder_fit import EncoderFit
from gateway.response_cache.settings import CacheSettings
from gateway.settings import Settings
from gateway.wiring.model_builder import ModelBuilder
from gateway.wiring.worker_parts import build_parts
from policies.cache import CacheSection
from policies.document import EncoderModel, ModelEntry, Policies
from policies.upstream import UpstreamModel
from router.estimate.estimate import WEIGHTS as ESTIMATES
from tests.backend.encoder.checkpoints import SIZE, write_encoder

UPSTREAM = ModelEntry(upstream=UpstreamModel(base_url="http://127.0.0.1:1/v1"))


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_encoder(tmp_path_factory.mktemp("own") / "e", "bert"))


def policies(checkpoint: str, mode: str = "semantic") -> Policies:
    encoder = ModelEntry(encoder=EncoderModel(checkpoint=checkpoint, languages=["de"]))
    return Policies(models={"m": UPSTREAM, "e": encoder}, cache=CacheSection(mode=mode))  # type: ignore[arg-type]


def test_shipped_cards_name_the_shipped_encoder() -> None:
    fit = EncoderFit(policies(BUILTIN))
    card = identity_of(BUILTIN).card()
    for path in (fit.verifier, fit.heads, fit.classifier, fit.domains, ESTIMATES / "general.safetensors"):
        assert read_card(path).get("encoder", card) == card, path
        assert fit.reads(path)
    assert fit.is_builtin and fit.readable_heads == fit.heads


def test_another_encoder_reads_none_of_them(own: str) -> None:
    fit = EncoderFit(policies(own))
    assert not fit.is_builtin and fit.readable_heads is None
    assert not any(fit.reads(path) for path in (fit.verifier, fit.heads, fit.classifier, fit.domains))


def test_without_an_encoder_nothing_is_misread() -> None:
    fit = EncoderFit(Policies())
    assert fit.identity is None and not fit.is_builtin
    assert fit.misfit(fit.verifier, "train", "key") == ""


def test_without_weights_of_the_encoder_the_heads_stand_aside() -> None:
    vector = np.zeros(SIZE, np.float32)
    assert needs_context("And the other one?", vector, ["Which is it?"], None) == 1.0
    assert needs_context("What is a prime number?", vector, [], None) == 0.0
    assert freshness("Who is the president of France?", vector, None) == "static"
    assert freshness("What is the weather in Rome now?", vector, None) == "volatile"


def builder(given: Policies) -> ModelBuilder:
    return ModelBuilder(Settings(socket_paths={"e": "/none"}), given, {}, build_parts(Settings(), ["m"]))


async def test_answers_found_by_vectors_of_different_encoders_are_apart(own: str, tmp_path: Path) -> None:
    """Vectors of other sizes, or that mean other things, never meet in one partition."""
    other = str(write_encoder(tmp_path / "other", "mpnet"))
    digests = {
        name: builder(policies(checkpoint, mode)).build("m").policy_digest
        for name, checkpoint, mode in (
            ("shipped", BUILTIN, "semantic"),
            ("own", own, "semantic"),
            ("other", other, "semantic"),
            ("exact", own, "exact"),
        )
    }
    assert digests["shipped"] == digests["exact"] and len(set(digests.values())) == 3
    assert CacheSettings.of(None, policies(own).cache).mode == "semantic"


async def test_the_cache_of_another_encoder_judges_with_what_it_can(own: str) -> None:
    """The heads' weights are not its, and how near two wordings of an answer are is not known of it."""
    made = builder(policies(own))
    made.build("e")
    assert made.response_cache().heads is None
    assert made.response_cache().languages == {"de"}
    assert await made.response_cache().sampler._compare("It is blue.", "The colour is blue.") == "unsure"
    shipped = builder(policies(BUILTIN))
    shipped.build("e")
    assert shipped.response_cache().heads == EncoderFit(policies(BUILTIN)).heads
