"""The house as it should stay: root entries, tests for every package, no grab-bag modules."""

from __future__ import annotations

import subprocess
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
    "backend/engine/pairs/test_table.py": "the generated tables of backend/FEATURES.md",
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
    "gateway/providers/upstream/test_both_transports.py": "what both transports do alike",
    "gateway/providers/upstream/test_cut_streams.py": "streams of all APIs, cut anywhere",
    "gateway/web/test_framing.py": "HTTP/1.1 framing of the whole application",
    "policies/test_published.py": "the generated schema.json and REFERENCE.md",
}


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


def test_weights_stay_small() -> None:
    sizes = [(ROOT / path).stat().st_size for path in tracked_files() if path.suffix == ".safetensors"]
    assert sum(sizes) <= MAX_WEIGHTS_BYTES
