from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from backend.config import EngineConfig, RestoredAdapter
from backend.lora.info import AdapterInfo
from backend.server.engine_messages import Adapters
from gateway.processes.specs import AdapterMemory, backend
from gateway.settings import Settings
from policies.document import AdapterEntry, EngineModel, ModelEntry, Policies, Speculative


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


def test_an_engine_that_starts_again_is_told_what_it_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "model").mkdir()
    engine = EngineModel(
        checkpoint=str(tmp_path / "model"), max_running=7, adapters={"fixed": AdapterEntry(path="/f")}
    )
    path = tmp_path / "m.sock"
    backend(
        "m",
        Policies(models={"m": ModelEntry(engine=engine)}),
        Settings(socket_paths={"m": str(path)}),
        tmp_path,
    )
    memory = AdapterMemory(tmp_path, str(path))
    late, other = (AdapterInfo(name, f"<{name}>", "m", 8, 1000, f"/{name}") for name in ("late", "other"))
    memory.remember(Adapters([late]))
    memory.remember(Adapters([other], lost=["late", "never"]))
    config = msgspec.json.decode((tmp_path / "m.json").read_bytes(), type=EngineConfig)
    want = {"late": RestoredAdapter("/late", "<late>"), "other": RestoredAdapter("/other", "<other>")}
    assert config.restored_adapters == want, "what is lost may be found the next time"
    assert config.adapters == {} and config.max_running == 7, "the policy's own was unloaded"
    assert (tmp_path / "m.json").stat().st_mode & 0o077 == 0
    (tmp_path / "m.json").unlink()
    memory.remember(Adapters([other]))
    assert "will not outlive it" in caplog.text
