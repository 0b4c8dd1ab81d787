from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from backend.config import EngineConfig, RestoredAdapter
from backend.lora.info import AdapterInfo
from backend.server.encoder_messages import EncoderConfig
from backend.server.engine_messages import Adapters
from gateway.processes.messages import Version
from gateway.processes.specs import backend_command, backend_config, worker_command
from gateway.settings import Settings
from policies.document import AdapterEntry, EncoderModel, EngineModel, ModelEntry, Policies, Speculative


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    (tmp_path / "model").mkdir()
    return str(tmp_path / "model")


def policies(engine: EngineModel) -> Policies:
    return Policies(models={"m": ModelEntry(engine=engine)})


def test_the_engines_config_has_what_its_policy_says(checkpoint: str) -> None:
    engine = EngineModel(
        checkpoint=checkpoint,
        speculative=Speculative(drafter="suffix", max_tokens=5, tree_nodes=9),
        adapters={"a": AdapterEntry(path="/a"), "b": AdapterEntry(path="/b", force=True)},
        unknown_fields="ignore",  # for the gateway only
        kv_dtype="fp8",
    )
    line = backend_config("m", policies(engine), Settings()).line()
    config = msgspec.json.decode(line, type=EngineConfig)
    assert (config.speculative.drafter, config.speculative.max_tokens) == ("suffix", 5)
    assert config.kv_dtype == "fp8"
    assert config.speculative.adaptive and config.speculative.tree_nodes == 9
    assert (config.adapters, config.forced_adapters) == ({"a": "/a", "b": "/b"}, ["b"])


def test_the_encoders_config_has_no_option_of_the_gateway() -> None:
    digests = {"model.safetensors": "0" * 64}
    encoder = EncoderModel(
        checkpoint="/e", unknown_fields="ignore", languages=["de"], prompt_name="query", sha256=digests
    )
    known = Policies(models={"m": ModelEntry(encoder=encoder)})
    line = backend_config("m", known, Settings()).line()
    config = msgspec.json.decode(line, type=EncoderConfig)
    assert (config.model, config.prompt_name) == ("m", "query")
    assert config.sha256 == {"/e/model.safetensors": "0" * 64}


def test_a_restarted_engine_loads_the_adapters_that_it_served(checkpoint: str) -> None:
    engine = EngineModel(checkpoint=checkpoint, max_running=7, adapters={"fixed": AdapterEntry(path="/f")})
    kept = backend_config("m", policies(engine), Settings())
    command = backend_command(kept, policies(engine), 9)
    assert list(msgspec.json.decode(command.stdin(), type=EngineConfig).adapters) == ["fixed"]
    late, other = (AdapterInfo(name, f"<{name}>", "m", 8, 1000, f"/{name}") for name in ("late", "other"))
    kept.keep_adapters(Adapters([late]))
    kept.keep_adapters(Adapters([other], lost=["late", "never"]))
    config = msgspec.json.decode(command.stdin(), type=EngineConfig)
    want = {"late": RestoredAdapter("/late", "<late>"), "other": RestoredAdapter("/other", "<other>")}
    assert config.restored_adapters == want, "a lost adapter may exist again at the next restart"
    assert config.adapters == {} and config.max_running == 7, "the policy's adapter was unloaded"


def test_processes_inherit_what_they_need(checkpoint: str) -> None:
    encoder = Policies(models={"e": ModelEntry(encoder=EncoderModel(checkpoint=checkpoint, num_threads=3))})
    command = backend_command(backend_config("e", encoder, Settings()), encoder, 9)
    assert (command.name, command.module) == ("encoder 'e'", "backend.server.encoder_process")
    assert command.pass_fds == (9,) and command.arguments[:2] == ["--listen-fd", "9"]
    assert command.arguments[-2:] == ["--log-format", "text"]
    assert msgspec.json.decode(command.stdin(), type=EncoderConfig).num_threads == 3
    secret = Settings(api_keys=("sk-1",))
    version = Version(1, encoder, secret, ("e",))
    worker = worker_command(1, [7, 8], lambda: version, lambda: b"{}\n")
    config, statuses, end = worker.stdin().split(b"\n")
    assert worker.pass_fds == (7, 8) and (statuses, end) == (b"{}", b"")
    found = msgspec.json.decode(config)
    assert (found["listen_fd"], found["number"], found["version"]["settings"]["api_keys"]) == (7, 1, ["sk-1"])
    assert "sk-1" not in f"{worker.arguments}{worker.environment}"
