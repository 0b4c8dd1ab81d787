"""A family is known in its own module only: nothing else in the engine or the gateway names architectures."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from backend.config import ModelConfig
from backend.models.checkpoint_config import read_model_config
from backend.models.families import BY_MODEL_TYPE, FAMILIES, Family
from tests.backend.models.__main__ import PAGE, page, versions
from tests.backend.models.checkpoints import VARIANTS
from tests.backend.models.shapes import build_shapes

ROOT = Path(__file__).resolve().parents[4]
FAMILY_MODULES = ROOT / "backend" / "models" / "families"
# Training chooses among transformers' own classes, not among ours.
TRAINING = ROOT / "backend" / "pico"
SELECTORS = {"architecture", "architectures", "model_type"}


# The class's own defaults make half of a head an odd number of dimensions, leave out the heads of keys or the
# experts of a token, or use one of two rotations.
NEEDED: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "granitemoehybrid": {
        "layer_types": ["linear_attention", "full_attention"] * 16,
        "position_embedding_type": "rope",
    },
    "lfm2": {"block_auto_adjust_ff_dim": False},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "glm4_moe": {"head_dim": 128},
    "laguna": {"layer_types": ["full_attention", "sliding_attention"] * 20},
    "nemotron": {"num_key_value_heads": 8},
}


EPS_KEYS = ("rms_norm_eps", "layer_norm_eps", "norm_epsilon", "norm_eps", "layer_norm_epsilon")


def offences(source: str) -> list[str]:
    """Literals that are a family's name, and comparisons or matches of an architecture or a model type."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and node.value in FAMILIES:
            found.append(f"{node.lineno}: {node.value}")
        elif isinstance(node, ast.Compare | ast.Match):
            sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else [node.subject]
            if any(selects(side) for side in sides):
                found.append(f"{node.lineno}: {ast.unparse(node)[:80]}")
    return found


def selects(side: ast.expr) -> bool:
    """Whether the expression reads an architecture or a model type, by name, attribute or key."""
    match side:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in SELECTORS
        case ast.Subscript(slice=ast.Constant(value=key)) | ast.Call(args=[ast.Constant(value=key), *_]):
            return key in SELECTORS
    return False


def test_architectures_are_compared_nowhere_else() -> None:
    paths = [
        path for package in ("backend", "gateway", "policies") for path in ROOT.glob(f"{package}/**/*.py")
    ]
    found = {
        str(path.relative_to(ROOT)): listed
        for path in paths
        if FAMILY_MODULES not in path.parents and TRAINING not in path.parents
        if (listed := offences(path.read_text(encoding="utf-8")))
    }
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "if config.architecture == other: pass",
        "if raw.get('model_type') == 'mixtral': pass",
        "if raw['model_type'] in ('qwen2', 'qwen3'): pass",
        "match architecture:\n    case _: pass",
        "names = ('LlamaForCausalLM',)",
    ],
)
def test_the_search_finds(source: str) -> None:
    assert offences(source)


def facts(config: ModelConfig) -> dict[str, object]:
    """What the class's defaults decide, under the names of config.json."""
    own = config.attention
    mixers: list[Any] = [layer.mixer for layer in config.layers]
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": None if config.experts else config.layers[0].block.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": own.num_heads,
        # Latent attention: all heads have keys of their own, of which `head_dim` dimensions are rotated.
        "num_key_value_heads": own.num_kv_heads if own.latent is None else own.num_heads,
        "head_dim": own.rotary_dim,
        "max_position_embeddings": config.max_position_tokens,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_word_embeddings,
        "rope_thetas": {rope.theta for rope in config.ropes},
        "windows": tuple(getattr(spec, "window", "state") for spec in mixers),
        "experts": config.experts and (config.experts.num_experts, config.experts.experts_per_token),
        "expert_size": config.experts and config.experts.intermediate_size,
    }


def transformers_facts(model_type: str, **given: Any) -> dict[str, object]:  # noqa: ANN401
    """The same of the configuration class in transformers."""
    outer = AutoConfig.for_model(model_type, **given)
    config = outer.get_text_config()
    config.allow_global_per_layer_attribute_access = True  # of the first layer, where layers differ
    same = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    same += ("num_key_value_heads", "max_position_embeddings")
    found: dict[str, object] = {name: getattr(config, name, None) for name in same}
    said = outer if hasattr(outer, "tie_word_embeddings") else config
    found["tie_word_embeddings"] = said.tie_word_embeddings
    heads = config.hidden_size // config.num_attention_heads
    layers = range(config.num_hidden_layers)
    types = getattr(config, "layer_types", None) or ["sliding_attention" for _ in layers]
    windows = {"sliding_attention": getattr(config, "sliding_window", None), "full_attention": None}
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    own = getattr(config, "rope_parameters", None) or {}
    ropes = [own] if "rope_theta" in own else list(own.values())
    return found | {
        "rms_norm_eps": next(found for name in EPS_KEYS if (found := getattr(config, name, None))),
        "head_dim": getattr(config, "head_dim", None) or heads,
        "rope_thetas": {section["rope_theta"] for section in ropes},
        "windows": tuple(windows.get(name, "state") for name in types),
        "experts": (experts, config.num_experts_per_tok) if experts else None,
        "intermediate_size": None if experts else config.intermediate_size,
        "expert_size": (getattr(config, "moe_intermediate_size", None) or config.intermediate_size)
        if experts
        else None,
    }


@pytest.mark.parametrize("given", [{}, {"use_sliding_window": True, "max_window_layers": 3}], ids=str)
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_keys_that_are_left_out_are_the_classs_defaults(
    tmp_path: Path, family: Family, given: dict[str, Any]
) -> None:
    given = given | NEEDED.get(family.model_type, {})
    given = {"text_config": given} if family.texts else given
    raw = {"architectures": [family.architecture], **given}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert facts(read_model_config(tmp_path)) == transformers_facts(family.model_type, **given)


@pytest.mark.parametrize("kind", [*BY_MODEL_TYPE])
def test_a_model_type_alone_names_a_family(tmp_path: Path, kind: str) -> None:
    family = BY_MODEL_TYPE[kind]
    given = NEEDED.get(family.model_type, {})
    keys = {"text_config": given} if family.texts else given
    found = []
    for name in ({"architectures": [family.architecture]}, {"model_type": kind}, {"architectures": None}):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **name, **keys}))
        found.append(read_model_config(tmp_path))
    assert found[0] == found[1] == found[2]


def test_every_published_model_type_is_known() -> None:
    assert BY_MODEL_TYPE["kimi_k2"] is FAMILIES["DeepseekV3ForCausalLM"]
    assert len(BY_MODEL_TYPE) == len(FAMILIES) + 1


def test_each_family_has_a_module_and_a_test() -> None:
    modules = {path.stem for path in FAMILY_MODULES.glob("*.py")} - {"__init__", "family"}
    tests = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")} - {
        "families"
    }
    assert modules == tests and len(modules) == len(FAMILIES)


def test_the_page_of_models_is_current() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.backend.models"


@pytest.mark.parametrize(
    ("name", "fixed", "has_states"),
    [
        ("llama", set(), False),
        ("deepseek-v3", {"kv_b_proj"}, False),
        ("gpt-oss", {"experts"}, False),
        ("qwen3.5-moe", {"experts"}, True),
        ("nemotron-h", set(), True),
    ],
)
def test_the_page_knows_what_adapters_cannot_change(
    tmp_path: Path, name: str, fixed: set[str], has_states: bool
) -> None:
    built = build_shapes(next(variant for variant in VARIANTS if variant.name == name), tmp_path)
    assert (built.fixed, bool(built.decoder.config.states)) == (fixed, has_states)


def test_the_page_names_versions_of_the_changelog() -> None:
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert len(rows) == len(FAMILIES)
    assert {row[-1].removesuffix(" |") for row in rows} <= set(versions())


def test_each_family_is_compared() -> None:
    assert {family.model_type for family in FAMILIES.values()} == {variant.model_type for variant in VARIANTS}
