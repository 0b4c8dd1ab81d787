"""The house as it should stay: root entries, tests for every package, no grab-bag modules."""

from __future__ import annotations

import ast
import subprocess
from collections import defaultdict, deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

ROOT_ENTRIES = {
    ".ci",
    ".dockerignore",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "backend",
    "cache",
    "constraints.txt",
    "deploy",
    "gateway",
    "guardrails",
    "policies",
    "pyproject.toml",
    "router",
    "tests",
}
PACKAGES = ("gateway", "cache", "router", "guardrails", "policies", "backend")
GRAB_BAGS = {"utils", "util", "common", "helpers", "helper", "misc", "core"}
# Folders that hold records and interfaces only; their users test them.
TESTED_BY_THEIR_USERS = {Path("backend")}
MAX_WEIGHTS_BYTES = 48 * 2**20

# Test files about several modules together, which mirror none; each with its subject.
SUITES = {
    "backend/engine/pairs/test_drafters.py": "every drafter with every other feature",
    "backend/engine/pairs/test_ranks.py": "all of them on two ranks",
    "backend/engine/pairs/test_seeds.py": "a seed, alone and in company",
    "backend/engine/pairs/test_table.py": "the generated tables of backend/FEATURES.md",
    "backend/engine/test_recurrent_states.py": "a model with recurrent states in an engine",
    "backend/engine/test_windows.py": "layers with pages of their own in an engine",
    "backend/engine/test_waits.py": "what a whole step copies to its device, and waits for",
    "backend/kernels/test_company.py": "operations whose rows are the same bits in any company",
    "backend/lora/test_cost.py": "cost of adapters for requests without one",
    "backend/lora/test_filling.py": "copies to device slots that fail",
    "backend/lora/test_peft.py": "results equal to PEFT's",
    "backend/models/test_errors.py": "messages about broken checkpoints",
    "backend/models/test_fused_experts.py": "which models use fused experts",
    "backend/models/test_parity.py": "logits equal to transformers'",
    "backend/pico/tasks/test_drills.py": "several questions about one text",
    "backend/pico/tasks/test_families.py": "properties of all families",
    "backend/pico/tasks/test_repeats.py": "look-up steps",
    "backend/pico/tasks/test_thoughts.py": "all families' reasoning",
    "backend/pico/tasks/test_walks.py": "all families' reasoning, step by step",
    "backend/scheduler/test_properties.py": "invariants of scheduler and pages together",
    "backend/server/test_adapters.py": "adapters over a socket",
    "backend/speculative/test_distribution.py": "drafts change no distribution",
    "backend/speculative/test_equality.py": "drafts change no output",
    "backend/speculative/test_model_drafters.py": "drafters with weights in an engine",
    "backend/speculative/test_tree_equality.py": "trees change no output",
    "gateway/cli/test_broken_checkpoints.py": "checkpoints that penstock serve refuses",
    "gateway/providers/engine/test_enforced_calls.py": "calls by a model whose logits are random",
    "gateway/providers/upstream/test_both_transports.py": "what both transports do alike",
    "gateway/providers/upstream/test_cut_streams.py": "streams of all APIs, cut anywhere",
    "gateway/providers/upstream/test_usage.py": "what answers have used, as far as it is told",
    "gateway/tool_calls/test_answers.py": "answers as users have them, in every syntax",
    "gateway/tool_calls/test_syntaxes.py": "what holds in every syntax",
    "gateway/web/test_framing.py": "HTTP/1.1 framing of the whole application",
    "policies/test_published.py": "the generated schema.json and REFERENCE.md",
}

# Modules and folders without a test of their own; each with what tests it. It may shrink, never grow.
UNTESTED = {
    "backend/classifiers/pair_training.py": "the verifier's training command",
    "backend/encoder/graph.py": "the encoder's vectors, compared with the library's",
    "backend/pico/tasks": "suites over all families, in the same folder",
    "backend/server/encoder_process.py": "the encoder process, started by test_encoder_server",
    "backend/server/engine_check.py": "a child process of `penstock check`",
    "gateway/adapters/loader.py": "admin/test_adapters, over HTTP",
    "gateway/admin/health.py": "the application, over HTTP",
    "gateway/evaluation/guardrails/judging.py": "`penstock eval guardrails`",
    "gateway/evaluation/guardrails/profile.py": "`penstock eval guardrails`",
    "gateway/evaluation/vectors.py": "`penstock eval`",
    "gateway/cli/commands": "declarations; the tests of what each command does run them",
    "gateway/endpoints/count_tokens.py": "the endpoints that count, over HTTP",
    "gateway/endpoints/responses/endpoint.py": "/v1/responses, over HTTP",
    "gateway/exchange/translation.py": "an abstract class; each of its translations",
    "gateway/openai/completions.py": "/v1/completions, over HTTP",
    "gateway/openai/tokenize.py": "/tokenize, over HTTP",
    "gateway/pipeline/stages/listen.py": "test_pipeline",
    "gateway/providers/upstream/forwarding.py": "endpoints/test_passthrough",
    "gateway/stored/chat_storing.py": "test_chats, over HTTP",
    "gateway/wiring/worker.py": "every end-to-end test: the worker process",
    "guardrails/screen/answer_checks.py": "screening/test_answer",
    "guardrails/train/__main__.py": "a training command, run by hand",
    "guardrails/train/names/__main__.py": "a training command, run by hand",
    "gateway/web/multipart.py": "files, over HTTP",
}
MAX_UNTESTED = 27


def tracked_files() -> list[Path]:
    """Paths that git knows, or would know after `git add`, relative to the root."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [Path(line) for line in lines if (ROOT / line).exists()]


def modules() -> list[Path]:
    return [
        p for p in tracked_files() if p.parts[0] in PACKAGES and p.suffix == ".py" and p.name != "__init__.py"
    ]


def test_root_entries_are_on_the_list() -> None:
    assert {path.parts[0] for path in tracked_files()} - ROOT_ENTRIES == set()


def test_no_grab_bag_modules() -> None:
    names = {
        part.removesuffix(".py") for path in tracked_files() if path.suffix == ".py" for part in path.parts
    }
    assert names & GRAB_BAGS == set()


def test_every_package_has_tests() -> None:
    packages = {module.parent for module in modules()}
    untested = {package for package in packages if not list((ROOT / "tests" / package).glob("test_*.py"))}
    assert untested - TESTED_BY_THEIR_USERS == set()


def test_tests_mirror_the_packages() -> None:
    """`tests/a/b/test_c.py` tests the module or package `a/b/c`, or the package `a/b` when b is c."""
    unmatched = set()
    for path in tracked_files():
        if path.parts[0] != "tests" or path.parts[1] not in PACKAGES or not path.name.startswith("test_"):
            continue
        mirrored = path.relative_to("tests").with_name(path.stem.removeprefix("test_"))
        is_module = (ROOT / mirrored.with_suffix(".py")).exists() or (ROOT / mirrored).is_dir()
        if not is_module and mirrored.name != mirrored.parent.name:
            unmatched.add(str(path.relative_to("tests")))
    assert unmatched == set(SUITES)


def dotted(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def statements(source: str) -> Iterator[ast.AST]:
    """All statements, wherever in the source, without the expressions: those are most of the nodes."""
    waiting: deque[ast.AST] = deque([ast.parse(source)])
    while waiting:
        node = waiting.popleft()
        yield node
        inner = ast.stmt | ast.excepthandler | ast.match_case
        waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, inner)]


@cache
def imports(path: Path) -> set[str]:
    """Modules and names that a file imports, wherever in it."""
    found: set[str] = set()
    for node in statements((ROOT / path).read_text("utf-8")):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def has_own_test(path: Path, files: set[Path]) -> bool:
    """Whether a test file has the module's name, or for an `__init__.py` that of its folder."""
    if path.name == "__init__.py":
        folder, name = path.parent, f"test_{path.parent.name}.py"
        return bool({"tests" / folder / name, "tests" / folder.parent / name} & files)
    return Path("tests", path.parent, f"test_{path.name}") in files


def has_functions(path: Path) -> bool:
    source = (ROOT / path).read_text("utf-8")
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in statements(source))


def untested_modules() -> set[Path]:
    """Modules with functions, no test of their name, none that imports them, and no tested user beside them.

    A part of a tested module is tested through that, when both are in one folder.
    """
    files = set(tracked_files())
    sources = [path for path in files if path.parts[0] in PACKAGES and path.suffix == ".py"]
    tested = {path for path in sources if has_own_test(path, files)}
    tests = [path for path in files if path.parts[0] == "tests" and path.name.startswith("test_")]
    used = {name for test in tests for name in imports(test)}
    beside = defaultdict[Path, set[str]](set)
    for path in tested:
        beside[path.parent] |= imports(path)
    return {
        path
        for path in sources
        if path.name != "__init__.py" and path not in tested
        if dotted(path) not in used | beside[path.parent] and has_functions(path)
    }


def test_every_module_has_a_test_or_a_reason() -> None:
    excused = [Path(path) for path in UNTESTED]
    missing = {path for path in untested_modules() if not {path, *path.parents} & set(excused)}
    assert missing == set(), "add tests/<path>/test_<module>.py"


def test_exceptions_are_still_needed() -> None:
    """A module that has got a test, or is gone, leaves the list; so does a folder without such a module."""
    untested = untested_modules()
    needed = {name for name in UNTESTED if any(Path(name) in {path, *path.parents} for path in untested)}
    assert set(UNTESTED) - needed == set()


def test_there_are_no_more_exceptions() -> None:
    assert len(UNTESTED) <= MAX_UNTESTED, "a new module needs a test"


def test_what_serves_requests_finds_sections_by_name() -> None:
    """A section that someone copies has another `id`: a table by `id` would then lack it."""
    served = [p for p in modules() if p.parts[0] in ("gateway", "cache", "router")]
    commands = (Path("gateway/cli"), Path("gateway/evaluation"))
    calls = {
        f"{path}:{node.lineno}"
        for path in served
        if not any(folder in path.parents for folder in commands)
        if "id(" in (source := (ROOT / path).read_text("utf-8"))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "id"
    }
    assert calls == set()


def test_a_command_and_what_it_does_have_different_names() -> None:
    """`commands/keys.py` declares flags: a `keys.py` beside `commands` would look like the same."""
    parsers, work = (
        {path.name for path in modules() if path.parent == folder}
        for folder in (Path("gateway/cli/commands"), Path("gateway/cli"))
    )
    assert parsers and parsers & work == set()


def asserts_of_none(text: str) -> list[int]:
    """The lines of a module that assert that something is not None."""
    return [
        node.lineno
        for node in statements(text)
        if isinstance(node, ast.Assert)
        for part in ast.walk(node.test)
        if isinstance(part, ast.Compare) and isinstance(part.ops[0], ast.IsNot)
        if isinstance(part.comparators[0], ast.Constant) and part.comparators[0].value is None
    ]


def test_the_gateway_asserts_of_nothing_that_it_is_there() -> None:
    """A value that may be missing has a type that says so: pass it on, or raise an error with the cause."""
    found = {
        f"{path}:{line}"
        for path in modules()
        if path.parts[0] == "gateway"
        for line in asserts_of_none((ROOT / path).read_text("utf-8"))
    }
    assert found == set()


def test_an_assert_of_none_is_found_in_any_form() -> None:
    assert asserts_of_none("assert a is not None\nassert b and a.c is not None, 'why'\nassert a") == [1, 2]


def test_weights_stay_small() -> None:
    sizes = [(ROOT / path).stat().st_size for path in tracked_files() if path.suffix == ".safetensors"]
    assert sum(sizes) <= MAX_WEIGHTS_BYTES
