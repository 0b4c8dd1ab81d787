"""A seed gives the same tokens whatever else is computed, also where products round their inputs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from backend.config import QuantizeConfig
from backend.types import Request, SamplingParams
from tests.backend.engine.pairs.features import PROMPTS
from tests.backend.engine.pairs.stage import BFLOAT16, FLOAT32, PICO_LARGE, Record, Stage, play

NUM_TOKENS, TEMPERATURE = 60, 1.4
INT4: Mapping[str, object] = {"dtype": "auto", "quantize": QuantizeConfig(scheme="int4")}


@pytest.mark.parametrize("dtypes", [FLOAT32, BFLOAT16, INT4], ids=["float32", "bfloat16", "int4"])
def test_a_seed_gives_the_same_tokens_in_any_company(dtypes: Mapping[str, object]) -> None:
    stage = Stage(PICO_LARGE, dtypes)
    asked = [
        Request(
            request_id=f"{name}/{seed}",
            prompt_token_ids=stage.tokenizer.encode_chat([{"role": "user", "content": text}]),
            params=SamplingParams(
                max_tokens=NUM_TOKENS, min_tokens=NUM_TOKENS, temperature=TEMPERATURE, seed=seed
            ),
            adapter=stage.adapters[0] if seed == 2 else "",
        )
        for name, text in PROMPTS.items()
        for seed in range(3)
    ]
    alone, together = Record(), Record()
    for request in asked:
        play(stage.engine(alone), alone, [request])
    play(stage.engine(together, max_batch_tokens=50), together, asked)
    for request in asked:
        assert together.tokens(request.request_id) == alone.tokens(request.request_id)
    stage.close()
