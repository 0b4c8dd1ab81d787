from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import msgspec
import pytest

from backend.config import EngineConfig, QuantizeConfig, RestoredAdapter
from backend.lora.info import AdapterInfo
from backend.server.encoder_messages import EncoderConfig
from backend.server.engine_messages import Adapters
from gateway.processes import specs
from gateway.processes.backends import backend_names
from gateway.processes.messages import Version
from gateway.processes.specs import RestartableConfig, backend_command, backend_config, worker_command
from gateway.settings import Settings
from policies.document import (
    AdapterEntry,
    EncoderModel,
    EngineModel,
    ModelEntry,
    Parallel,
    Policies,
    Quantize,
    Speculative,
)


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
        parallel=Parallel(tensor=2),
    )
    line = backend_config("m", policies(engine), Settings()).line()
    config = msgspec.json.decode(line, type=EngineConfig)
    assert (config.speculative.drafter, config.speculative.max_tokens) == ("suffix", 5)
    assert config.kv_dtype == "fp8"
    assert (config.parallel.tensor, config.parallel.size) == (2, 2)
    assert config.speculative.adaptive and config.speculative.tree_nodes == 9
    assert (config.adapters, config.forced_adapters) == ({"a": "/a", "b": "/b"}, ["b"])


def test_the_number_of_replicas_restarts_no_engine(checkpoint: str) -> None:
    one, three = (policies(EngineModel(checkpoint=checkpoint, replicas=count)) for count in (1, 3))
    assert backend_names(one) == ["m"] and backend_names(three) == ["m", "m#1", "m#2"]
    lines = {backend_config(name, three, Settings()).line() for name in backend_names(three)}
    assert lines == {backend_config("m", one, Settings()).line()}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", "service.instance.id=m%231"),
        ("team=a", "team=a,service.instance.id=m%231"),
        ("service.instance.id=x", "service.instance.id=x"),
    ],
)
def test_traces_tell_replicas_apart(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch, given: str, expected: str
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", given)
    two = policies(EngineModel(checkpoint=checkpoint, replicas=2))
    command = backend_command("m#1", backend_config("m#1", two, Settings()), two, 9)
    assert command.environment["OTEL_RESOURCE_ATTRIBUTES"] == expected


def test_rounded_weights_are_kept_in_the_data_folder(checkpoint: str, tmp_path: Path) -> None:
    def config(quantize: Quantize, data_dir: str) -> EngineConfig:
        engine = EngineModel(checkpoint=checkpoint, quantize=quantize)
        line = backend_config("m", policies(engine), Settings(data_dir=data_dir)).line()
        return msgspec.json.decode(line, type=EngineConfig)

    prompts = str(tmp_path / "prompts.jsonl")
    found = config(Quantize(scheme="int4", calibration=prompts), str(tmp_path)).quantize
    folder = str(tmp_path / "quantized")
    assert found == QuantizeConfig(scheme="int4", calibration=prompts, folder=folder)
    assert config(Quantize(scheme="fp8"), "").quantize == QuantizeConfig(scheme="fp8")


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
    command = backend_command("m", kept, policies(engine), 9)
    assert list(msgspec.json.decode(command.stdin(), type=EngineConfig).adapters) == ["fixed"]
    late, other = (AdapterInfo(name, f"<{name}>", "m", 8, 1000, f"/{name}") for name in ("late", "other"))
    kept.keep_adapters(Adapters([late]))
    kept.keep_adapters(Adapters([other], lost=["late", "never"]))
    config = msgspec.json.decode(command.stdin(), type=EngineConfig)
    want = {"late": RestoredAdapter("/late", "<late>"), "other": RestoredAdapter("/other", "<other>")}
    assert config.restored_adapters == want, "a lost adapter may exist again at the next restart"
    assert config.adapters == {} and config.max_running == 7, "the policy's adapter was unloaded"


def test_a_replica_follows_the_first_on_its_own_card(checkpoint: str) -> None:
    first, other = (RestartableConfig(EngineConfig(model="m", checkpoint=checkpoint)) for _ in range(2))
    assert isinstance(other.config, EngineConfig)
    other.config = msgspec.structs.replace(other.config, card="GPU-1", gpu_memory=0.4)
    first.keep_adapters(Adapters([AdapterInfo("late", "<late>", "m", 8, 1000, "/late")]))
    other.follow(first)
    assert isinstance(other.config, EngineConfig) and [*other.config.restored_adapters] == ["late"]
    assert (other.config.card, other.config.gpu_memory) == ("GPU-1", 0.4)


def test_processes_inherit_what_they_need(checkpoint: str) -> None:
    encoder = Policies(models={"e": ModelEntry(encoder=EncoderModel(checkpoint=checkpoint, num_threads=3))})
    command = backend_command("e", backend_config("e", encoder, Settings()), encoder, 9)
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


def _environment(checkpoint: str) -> dict[str, str]:
    known = policies(EngineModel(checkpoint=checkpoint))
    return dict(backend_command("m", backend_config("m", known, Settings()), known, 9).environment)


def test_threads_that_wait_soon_sleep_unless_the_user_decided(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    for name in names:
        monkeypatch.delenv(name, raising=False)

    def found() -> dict[str, str]:
        return {name: value for name, value in _environment(checkpoint).items() if name in names}

    assert found() == {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}
    monkeypatch.setenv("GOMP_SPINCOUNT", "20000")
    assert found() == {"GOMP_SPINCOUNT": "20000"}
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert found() == {"OMP_WAIT_POLICY": "active"}


def test_threads_keep_to_the_containers_quota_unless_the_user_decided(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(specs, "cpu_quota", lambda: None)
    assert "OMP_NUM_THREADS" not in _environment(checkpoint)
    monkeypatch.setattr(specs, "cpu_quota", lambda: 2)
    assert _environment(checkpoint)["OMP_NUM_THREADS"] == "2"
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert _environment(checkpoint)["OMP_NUM_THREADS"] == "7"


_STEPS = """
import sys, time
import torch
x, small = torch.ones(1 << 17), torch.ones(8)
def step():
    for _ in range(20):
        x.add_(1)  # a parallel region
        for _ in range(20):
            small.add_(1)  # what one thread does between two of them
step()
print(torch.get_num_threads(), flush=True)
for _ in sys.stdin:
    started = time.process_time()
    for _ in range(20):
        step()
    print(time.process_time() - started, flush=True)
"""


@contextmanager
def _two_busy_processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Stopped at first."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        for process in busy:
            process.send_signal(signal.SIGSTOP)
        yield busy
    finally:
        for process in busy:
            process.kill()
            process.wait()


def test_busy_neighbours_do_not_make_threads_spin(checkpoint: str) -> None:
    """A spinning thread costs CPU time, of which a test can be sure on any machine: 4 to 10 times as much."""
    environment = _environment(checkpoint) | {"OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-c", _STEPS]
    seconds: dict[signal.Signals, list[float]] = {signal.SIGSTOP: [], signal.SIGCONT: []}
    with (
        _two_busy_processes() as busy,
        subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        ) as steps,
    ):
        assert steps.stdin is not None and steps.stdout is not None
        assert steps.stdout.readline() == "2\n"
        for _ in range(5):  # interleaved: other load on the machine meets both
            for state, costs in seconds.items():
                for process in busy:
                    process.send_signal(state)
                steps.stdin.write("\n")
                costs.append(float(steps.stdout.readline()))
        steps.stdin.close()
    # Spinning costs a random time: the cheapest of a few may be cheap.
    assert median(seconds[signal.SIGCONT]) <= 1.5 * median(seconds[signal.SIGSTOP])
