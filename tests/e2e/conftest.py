"""One server for all of these tests; those that would break it start their own.

`start_server` ends it with the test, `start_module_server` with the module's tests;
a fifth at a time is refused.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.e2e.collector import HttpCollector
from tests.e2e.server import Server
from tests.e2e.upstream import Upstream

MODEL = "pico-small"
LOG_LINES_SHOWN = 60
MAX_SERVERS = 4
"""The one of all tests, and three gateways without engines."""
DEFAULT_POLICIES = Path(__file__).resolve().parents[2] / "policies" / "default"
SERVERS = pytest.StashKey[list[Server]]()

StartServer = Callable[..., Server]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raise the timeouts: the first test waits for the server, which starts slowly on a busy machine."""
    for item in items:
        if item.path.is_relative_to(__file__.rsplit("/", 1)[0]):
            item.add_marker(pytest.mark.timeout(600))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Attach the servers' logs to a failure report."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.failed:
        for server in item.session.stash.get(SERVERS, []):
            tail = "\n".join(server.log.splitlines()[-LOG_LINES_SHOWN:])
            report.sections.append((f"penstock serve on port {server.port}", tail))


@pytest.fixture(scope="session")
def canary() -> str:
    """A unique string that goes into keys and prompts and must not appear in any log or export."""
    return "canary" + secrets.token_hex(12)


def write_default_policies(folder: Path) -> Path:
    """The default policies with an eighth of the KV cache."""
    for path in DEFAULT_POLICIES.glob("*.yaml"):
        engine = "checkpoint: builtin:pico-small\n"
        text = path.read_text().replace(engine, f"{engine}      kv_cache_bytes: 134217728\n")
        (folder / path.name).write_text(text)
    return folder


@contextlib.contextmanager
def starting(session: pytest.Session, folders: pytest.TempPathFactory) -> Iterator[StartServer]:
    """A function that starts `penstock serve` with these arguments; the context ends what it has started."""
    running = session.stash.setdefault(SERVERS, [])
    own: list[Server] = []

    def start(*arguments: str, **options: object) -> Server:
        alive = [each for each in running if each.process.poll() is None]
        assert len(alive) < MAX_SERVERS, f"{MAX_SERVERS} servers run already: end one, or share one"
        server = Server(folders.mktemp("penstock") / "log.txt", *arguments, **options)  # type: ignore[arg-type]
        own.append(server)
        running.append(server)
        server.wait_ready()
        return server

    try:
        yield start
    finally:
        for server in own:
            server.close()
            running.remove(server)


@pytest.fixture
def start_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartServer]:
    """Start a server for one test."""
    with starting(request.session, tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="module")
def start_module_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartServer]:
    """Start a server for all tests of a module."""
    with starting(request.session, tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="package")
def start_package_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartServer]:
    """Start a server for all tests of this folder."""
    with starting(request.session, tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="package")
def collector() -> Iterator[HttpCollector]:
    """Receives the spans of `server`."""
    collector = HttpCollector()
    yield collector
    collector.close()


@pytest.fixture(scope="package")
def upstream() -> Iterator[Upstream]:
    """The provider behind the model `remote`."""
    upstream = Upstream()
    yield upstream
    upstream.close()


@pytest.fixture(scope="package")
def server(
    start_package_server: StartServer,
    collector: HttpCollector,
    upstream: Upstream,
    canary: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Server:
    """The default policies with less KV cache, one API key, tracing on, `remote` beside `pico-small`."""
    folder = write_default_policies(tmp_path_factory.mktemp("default"))
    return start_package_server(
        *("--policies", str(folder)),
        *("--upstream", f"remote={upstream.base_url}#far-away"),
        *("--upstream", "gone=http://127.0.0.1:9/v1"),
        api_key=f"sk-{canary}",
        environment={
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        },
    )


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    """The official client with our base_url and without retries, so that the first response counts."""
    with openai.OpenAI(base_url=server.base_url, api_key=server.api_key, max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    """An HTTP client that sends the key."""
    with httpx.Client(base_url=server.root_url, headers=server.headers, timeout=60) as client:
        yield client
