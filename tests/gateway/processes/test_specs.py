from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from backend.config import EngineConfig, RestoredAdapter
from backend.lora.info import AdapterInfo
from backend.server.encoder_messages import EncoderConfig
from backend.server.engine_messages import Adapters
from gateway.processes.specs import PersistedAdapters, backend_command
from gateway.settings import Settings
from policies.document import AdapterEntry, EncoderModel, EngineModel, ModelEntry, Policies, Speculative


def test_the_engines_config_has_its_policys_drafting(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    engine = EngineModel(
        checkpoint=str(tmp_path / "model"),
        speculative=Speculative(drafter="suffix", max_tokens=5, tree_nodes=9),
        adapters={"a": AdapterEntry(path="/a"), "b": AdapterEntry(path="/b", force=True)},
        unknown_fields="ignore",  # for the gateway only
    )
    settings = Settings(socket_paths={"m": str(tmp_path / "m.sock")})
    backend_command("m", Policies(models={"m": ModelEntry(engine=engine)}), settings, tmp_path)
    config = msgspec.json.decode((tmp_path / "m.json").read_bytes(), type=EngineConfig)
    assert (config.speculative.drafter, config.speculative.max_tokens) == ("suffix", 5)
    assert config.speculative.adaptive and config.speculative.tree_nodes == 9
    assert (config.adapters, config.forced_adapters) == ({"a": "/a", "b": "/b"}, ["b"])


def test_the_encoders_config_has_no_option_of_the_gateway(tmp_path: Path) -> None:
    encoder = EncoderModel(checkpoint="builtin:all-minilm-l6-v2", unknown_fields="ignore")
    settings = Settings(socket_paths={"m": str(tmp_path / "m.sock")})
    backend_command("m", Policies(models={"m": ModelEntry(encoder=encoder)}), settings, tmp_path)
    assert msgspec.json.decode((tmp_path / "m.json").read_bytes(), type=EncoderConfig).model == "m"


def test_a_restarted_engine_loads_the_adapters_that_it_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "model").mkdir()
    engine = EngineModel(
        checkpoint=str(tmp_path / "model"), max_running=7, adapters={"fixed": AdapterEntry(path="/f")}
    )
    path = tmp_path / "m.sock"
    backend_command(
        "m",
        Policies(models={"m": ModelEntry(engine=engine)}),
        Settings(socket_paths={"m": str(path)}),
        tmp_path,
    )
    persisted = PersistedAdapters(tmp_path, str(path))
    late, other = (AdapterInfo(name, f"<{name}>", "m", 8, 1000, f"/{name}") for name in ("late", "other"))
    persisted.save(Adapters([late]))
    persisted.save(Adapters([other], lost=["late", "never"]))
    config = msgspec.json.decode((tmp_path / "m.json").read_bytes(), type=EngineConfig)
    want = {"late": RestoredAdapter("/late", "<late>"), "other": RestoredAdapter("/other", "<other>")}
    assert config.restored_adapters == want, "a lost adapter may exist again at the next restart"
    assert config.adapters == {} and config.max_running == 7, "the policy's adapter was unloaded"
    assert (tmp_path / "m.json").stat().st_mode & 0o077 == 0
    (tmp_path / "m.json").unlink()
    persisted.save(Adapters([other]))
    assert "will not survive a restart" in caplog.text
