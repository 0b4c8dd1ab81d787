from __future__ import annotations

from pathlib import Path

import msgspec

from backend.config import EngineConfig
from gateway.commands import backend
from gateway.settings import Settings
from policies.document import EngineModel, ModelEntry, Policies, Speculative


def test_an_engine_is_told_its_policys_way_of_drafting(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    engine = EngineModel(
        checkpoint=str(tmp_path / "model"),
        speculative=Speculative(drafter="suffix", max_tokens=5, tree_nodes=9),
    )
    settings = Settings(socket_paths={"m": str(tmp_path / "m.sock")})
    backend("m", Policies(models={"m": ModelEntry(engine=engine)}), settings, tmp_path)
    config = msgspec.json.decode((tmp_path / "m.json").read_bytes(), type=EngineConfig)
    assert (config.speculative.drafter, config.speculative.max_tokens) == ("suffix", 5)
    assert config.speculative.adaptive and config.speculative.tree_nodes == 9
