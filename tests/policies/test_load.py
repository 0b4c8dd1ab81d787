"""Every error names file, line and remedy; a valid folder loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.document import EngineModel, ModelEntry, Policies, Price, Reasoning
from policies.errors import PolicyError
from policies.load import load_folder, load_policies, merge_models

DEFAULT = Path(__file__).parents[2] / "policies" / "default"

GOOD = """\
models:
  small:
    engine:
      checkpoint: builtin:pico-small
routes:
  auto:
    model: small
"""


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


def problems(folder: Path) -> list[tuple[str, int, str]]:
    with pytest.raises(PolicyError) as caught:
        load_policies(folder)
    return [(Path(p.place.file).stem, p.place.line, p.message) for p in caught.value.problems]


def test_default_folder_loads() -> None:
    policies = load_policies(DEFAULT)
    assert policies.models["pico-small"].kind == "engine"
    assert policies.models["all-minilm-l6-v2"].kind == "encoder"
    assert policies.routes["auto"].targets() == ["pico-small", "pico-large"]
    assert len(policies.version) == 12


def test_documents_of_files_and_streams_are_merged(tmp_path: Path) -> None:
    more = "models:\n  b: {upstream: {base_url: 'http://h/v1'}}\n---\nmodels:\n  c: {upstream: {base_url: 'https://h'}}\n"
    policies = load_policies(write(tmp_path, a=GOOD, b=more, empty="# nothing yet\n"))
    assert sorted(policies.models) == ["b", "c", "small"]
    upstream = policies.models["b"].upstream
    assert upstream is not None and upstream.connect_timeout_s == 5.0


def test_price(tmp_path: Path) -> None:
    text = GOOD.replace(
        "    engine:",
        "    price: {input_usd_per_million_tokens: 1, output_usd_per_million_tokens: 0.5}\n    engine:",
    )
    price = load_policies(write(tmp_path, a=text)).models["small"].price
    assert price == Price(input_usd_per_million_tokens=1.0, output_usd_per_million_tokens=0.5)
    wrong = problems(write(tmp_path, a=text.replace(": 1,", ": -1,").replace("output_usd", "outputusd")))
    assert [message for _, _, message in wrong] == [
        "models.small.price.input_usd_per_million_tokens must be a number >= 0, not -1",
        "unknown key 'outputusd_per_million_tokens' in models.small.price; "
        "did you mean 'output_usd_per_million_tokens'?",
        "models.small.price needs the key 'output_usd_per_million_tokens'",
    ]


def test_anchors_and_merge_keys(tmp_path: Path) -> None:
    text = """\
x-limits: &limits
  checkpoint: builtin:pico-small
  max_running: 4
  max_queue: 8
models:
  a: {engine: {<<: *limits, max_queue: 2}}
  b: {engine: *limits}
"""
    models = load_policies(write(tmp_path, a=text)).models
    assert models["a"].engine == EngineModel(checkpoint="builtin:pico-small", max_running=4, max_queue=2)
    assert models["b"].engine == EngineModel(checkpoint="builtin:pico-small", max_running=4, max_queue=8)


def test_relative_checkpoint_starts_at_the_file(tmp_path: Path) -> None:
    write(tmp_path, a=GOOD.replace("builtin:pico-small", "weights/mine"))
    engine = load_policies(tmp_path).models["small"].engine
    assert engine is not None and engine.checkpoint == str(tmp_path / "weights" / "mine")


def test_version_follows_content_not_layout(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    models, routes = GOOD.split("routes:")
    one = load_policies(write(tmp_path / "one", all=GOOD))
    two = load_policies(write(tmp_path / "two", z=models, a="# comment\nroutes:" + routes))
    assert one.version == two.version
    changed = load_policies(write(tmp_path / "two", z=models.replace("pico-small", "pico-large")))
    assert changed.version != one.version


CASES = {
    "unknown top key": ("modls: {}\n" + GOOD, [(1, "unknown key 'modls'; did you mean 'models'?")]),
    "unknown field": (
        GOOD.replace("checkpoint:", "max_runing: 3\n      checkpoint:"),
        [(4, "unknown key 'max_runing' in models.small.engine; did you mean 'max_running'?")],
    ),
    "key instead of its variable": (
        "models:\n  u:\n    upstream:\n      base_url: http://h/v1\n      api_key: sk-canary\n",
        [(5, "unknown key 'api_key' in models.u.upstream; did you mean 'api_key_env'?")],
    ),
    "HTTP/2 without TLS": (
        "models:\n  u:\n    upstream:\n      base_url: http://h/v1\n      http2: true\n",
        [(5, "models.u.upstream.http2 needs a base_url that begins with https://")],
    ),
    "HTTP/2 without a URL": (
        "models:\n  u:\n    upstream:\n      http2: true\n",
        [(3, "models.u.upstream needs a base_url, or the name of a known service as `service`")],
    ),
    "HTTP/2 with a malformed URL": (
        "models:\n  u:\n    upstream:\n      base_url: h\n      http2: true\n",
        [
            (
                4,
                "models.u.upstream.base_url must be a string of the form ^(https?://[^\\s/?#@]+(/[^\\s?#]*)?)?$",
            )
        ],
    ),
    "ports out of range": (
        "models:\n  u:\n    upstream:\n      base_url: https://h:99999/v1\n      proxy: http://p:x\n",
        [
            (
                4,
                "models.u.upstream.base_url has a port that is not a number from 1 to 65535",
            ),
            (5, "models.u.upstream.proxy has a port that is not a number from 1 to 65535"),
        ],
    ),
    "socket and proxy": (
        "models:\n  u:\n    upstream:\n      base_url: http://h\n      unix_socket: s\n      proxy: http://p:1\n",
        [(6, "models.u.upstream has both unix_socket and proxy; remove one")],
    ),
    "password in a proxy": (
        "models:\n  u:\n    upstream:\n      base_url: http://h\n      proxy: http://u:canary@p:1\n",
        [(5, "models.u.upstream.proxy must be a string of the form ^https?://[^\\s/?#@]+/?$")],
    ),
    "a step smaller than a page": (
        GOOD.replace("pico-small\n", "pico-small\n      max_running: 4\n      max_batch_tokens: 8\n"),
        [(6, "models.small.engine.max_batch_tokens must be a whole number >= 16 and <= 1048576, not 8")],
    ),
    "a step smaller than its sequences": (
        GOOD.replace("pico-small\n", "pico-small\n      max_batch_tokens: 64\n"),
        [
            (
                5,
                "models.small.engine.max_batch_tokens is 64, less than max_running (128, the default): each "
                "running sequence needs a token per step; raise it or lower the other",
            )
        ],
    ),
    "more sequences than tokens": (
        GOOD.replace("pico-small\n", "pico-small\n      max_running: 4096\n"),
        [
            (
                5,
                "models.small.engine.max_batch_tokens is 2048, less than max_running (4096): each running "
                "sequence needs a token per step; raise it or lower the other",
            )
        ],
    ),
    "missing field": (
        "models:\n  u:\n    upstream:\n      model: x\n",
        [(3, "models.u.upstream needs a base_url, or the name of a known service as `service`")],
    ),
    "two sections": (
        GOOD.replace("    engine:", "    encoder: {checkpoint: x}\n    engine:"),
        [
            (2, "models.small needs exactly one of engine, upstream, encoder, has engine and encoder"),
            (8, "route 'auto' leads to 'small', an encoder, which cannot chat"),
        ],
    ),
    "no section": (
        "models:\n  a:\n    description: x\n",
        [(2, "models.a needs exactly one of engine, upstream, encoder, has none")],
    ),
    "empty model": ("models:\n  a:\n", [(2, "models.a is empty; add its keys or remove it")]),
    "unknown model": (
        GOOD.replace("model: small", "model: smal"),
        [(7, "route 'auto' leads to the unknown model 'smal'; did you mean 'small'?")],
    ),
    "unknown model, nothing near": (
        GOOD.replace("model: small", "model: xyz"),
        [(7, "route 'auto' leads to the unknown model 'xyz'; known: small")],
    ),
    "route named as a model": (
        GOOD.replace("  auto:", "  small:"),
        [(6, "route 'small' has the name of a model, defined at FILE:2:3; rename one")],
    ),
    "duplicate key": (
        GOOD.replace("routes:", "      checkpoint: other\nroutes:"),
        [(5, "key 'checkpoint' is already set at FILE:4:7; remove one")],
    ),
    "duplicate section": (
        GOOD + "routes: {}\n",
        [(8, "key 'routes' is already set at FILE:5:1; remove one")],
    ),
    "wrong type": (
        GOOD.replace("checkpoint: builtin:pico-small", "checkpoint: 7\n      max_running: many"),
        [
            (4, 'models.small.engine.checkpoint must be a string, not 7; write it in "quotes"'),
            (5, "models.small.engine.max_running must be a whole number >= 1 and <= 65536, not 'many'"),
        ],
    ),
    "digests": (
        GOOD.replace(
            "pico-small", "pico-small\n      sha256:\n        m.safetensors: ABC\n        ../m: ABC"
        ),
        [
            (6, "models.small.engine.sha256.m.safetensors must be a string of the form ^[0-9a-f]{64}$"),
            (7, "models.small.engine.sha256 has the name '../m', expected "),
            (7, "models.small.engine.sha256.../m must be a string of the form ^[0-9a-f]{64}$"),
        ],
    ),
    "boolean is no number": (
        GOOD.replace("pico-small", "pico-small\n      max_queue: yes"),
        [(5, "models.small.engine.max_queue must be a whole number >= 1, not yes")],
    ),
    "out of range": (
        GOOD.replace("pico-small", "pico-small\n      max_queue: 0"),
        [(5, "models.small.engine.max_queue must be a whole number >= 1, not 0")],
    ),
    "wrong choice": (
        GOOD.replace("pico-small", "pico-small\n      dtype: bfloat"),
        [
            (
                5,
                "models.small.engine.dtype must be one of auto, bfloat16, float32, not 'bfloat'; "
                "did you mean 'bfloat16'?",
            )
        ],
    ),
    "list for mapping": ("models: [a, b]\n", [(1, "models must be a mapping of keys to values, not a list")]),
    "scalar document": ("hello\n", [(1, "a policy document must be a mapping with models, routes")]),
    "bad name": (
        GOOD.replace("  small:", "  my model:"),
        [
            (
                2,
                "models has the name 'my model', expected a string of the form ^[A-Za-z0-9]",
            ),
            (7, "route 'auto' leads to the unknown model 'small'; known: my model"),
        ],
    ),
    "not YAML": (
        "models:\n  a: [1\n  b: 2\n",
        [(3, "is not valid YAML: while parsing a flow sequence: expected")],
    ),
    "tab": ("models:\n\ta: 1\n", [(2, "is not valid YAML: while scanning for the next token")]),
    "unknown alias": ("models: *nothing\n", [(1, "is not valid YAML: found undefined alias")]),
    "python object": (
        "models: !!python/object/apply:os.system ['true']\n",
        [
            (1, "has a tag that policies do not have; remove it"),
            (1, "models must be a mapping of keys to values, not a list"),
        ],
    ),
    "control character": (
        "models: {}\n#\x00\n",
        [(2, "contains the character 0, which YAML does not allow")],
    ),
    "too deep": ("models: " + "[" * 5000, [(1, "is not valid YAML: nested deeper than 24 levels")]),
    "contains itself": ("x-a: &a [*a]\n", [(1, "an anchor contains its own alias")]),
}


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES.keys())
def test_problem_has_line_and_remedy(tmp_path: Path, text: str, expected: list[tuple[int, str]]) -> None:
    found = problems(write(tmp_path, policy=text))
    file = str(tmp_path / "policy.yaml")
    assert [(line, name) for name, line, _ in found] == [(line, "policy") for line, _ in expected]
    for (_, _, message), (_, wanted) in zip(found, expected, strict=True):
        assert message.startswith(wanted.replace("FILE", file))


def test_duplicate_across_files_names_both_places(tmp_path: Path) -> None:
    found = problems(write(tmp_path, a=GOOD, b="\n\nmodels:\n  small: {upstream: {base_url: 'http://h'}}\n"))
    assert found == [("b", 4, f"models.small is already defined at {tmp_path / 'a.yaml'}:2:3; remove one")]


def test_problems_of_several_files_come_together(tmp_path: Path) -> None:
    found = problems(write(tmp_path, a="modles: {}\n", b="models:\n  x: 3\n", c="{"))
    assert [(name, line) for name, line, _ in found] == [("a", 1), ("b", 2), ("c", 1)]


@pytest.mark.parametrize("field", ["api_key_env: sk-canary", "base_url: http://me:canary@host/v1"])
def test_a_pasted_secret_is_not_repeated(tmp_path: Path, field: str) -> None:
    other = "base_url: http://h" if field.startswith("api") else "model: m"
    found = problems(write(tmp_path, a=f"models:\n  u:\n    upstream:\n      {other}\n      {field}\n"))
    assert [line for _, line, _ in found] == [5]
    assert "canary" not in found[0][2]


def test_billion_laughs_is_refused(tmp_path: Path) -> None:
    lines = ["x-0: &l0 [a, a, a, a, a, a, a, a, a, a]"]
    lines += [f"x-{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 12)]
    found = problems(write(tmp_path, a="\n".join(lines)))
    assert found[0][:2] == ("a", 0) and "aliases" in found[0][2]


def test_file_level_problems(tmp_path: Path) -> None:
    assert "holds no *.yaml file" in problems(tmp_path)[0][2]
    assert "neither a folder" in problems(tmp_path / "missing")[0][2]
    (tmp_path / "a.yaml").write_bytes(b"models: {}\n# \xff\n")
    assert problems(tmp_path) == [("a", 2, "is not UTF-8 text")]
    (tmp_path / "a.yaml").write_text("#" * 600_000)
    assert "split it" in problems(tmp_path)[0][2]


def test_merge_models_replaces_and_renews_the_version() -> None:
    base = load_policies(DEFAULT)
    merged = merge_models(base, {"mine": ModelEntry(engine=EngineModel(checkpoint="/x"))})
    assert isinstance(merged, Policies) and set(merged.models) == {*base.models, "mine"}
    assert merged.version != base.version and merged.routes == base.routes


def test_reasoning_by_default(tmp_path: Path) -> None:
    text = GOOD.replace("pico-small\n", "pico-small\n      reasoning: {default_effort: medium}\n")
    engine = load_policies(write(tmp_path, a=text)).models["small"].engine
    assert engine is not None and engine.reasoning == Reasoning(default_effort="medium", expose=True)
    wrong = text.replace("medium", "midium")
    ((_, line, message),) = problems(write(tmp_path, a=wrong))
    assert line == 5 and "default_effort" in message and "did you mean 'medium'?" in message


def test_unknown_fields_are_refused_or_ignored(tmp_path: Path) -> None:
    text = GOOD.replace("pico-small\n", "pico-small\n      unknown_fields: ignore\n")
    engine = load_policies(write(tmp_path, a=text)).models["small"].engine
    assert engine is not None and engine.unknown_fields == "ignore"
    ((_, line, message),) = problems(write(tmp_path, a=text.replace("ignore", "ignored")))
    assert line == 5 and "did you mean 'ignore'?" in message


ADAPTED = GOOD.replace(
    "pico-small\n",
    "pico-small\n"
    "      adapters:\n"
    "        german: {path: adapters/german}\n"
    "        json: {path: 'builtin:json'}\n"
    "      adapter_loading: {principals: [default], folders: [more]}\n",
)


def test_adapters_and_their_loading_rules(tmp_path: Path) -> None:
    engine = load_policies(write(tmp_path, a=ADAPTED)).models["small"].engine
    assert engine is not None and engine.adapter_loading is not None
    paths = {name: entry.path for name, entry in engine.adapters.items()}
    assert paths == {"german": str(tmp_path / "adapters" / "german"), "json": "builtin:json"}
    assert engine.adapter_loading.folders == [str(tmp_path / "more")]
    assert engine.adapter_loading.principals == ["default"]


@pytest.mark.parametrize("target", ["german", "small:german", "small:json"])
def test_a_route_may_lead_to_an_adapter(tmp_path: Path, target: str) -> None:
    policies = load_policies(write(tmp_path, a=ADAPTED.replace("model: small", f"model: {target}")))
    assert policies.routes["auto"].model == target


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("germann", "route 'auto' leads to the unknown model 'germann'; did you mean 'german'?"),
        ("small:germa", "'small:germa'; did you mean 'small:german'?"),
        ("other:german", "leads to the unknown model 'other:german'"),
        ("json", "leads to 'json', an adapter of several models; write small:json or twin:json"),
    ],
)
def test_route_to_unknown_adapter(tmp_path: Path, target: str, message: str) -> None:
    twin = "models: {twin: {engine: {checkpoint: /c, adapters: {json: {path: /j}}}}}\n"
    text = ADAPTED.replace("model: small", f"model: {target}")
    ((_, line, found),) = problems(write(tmp_path, a=text, b=twin))
    assert message in found and f"model: {target}" in text.splitlines()[line - 1]


def test_qualified_adapter_name_clashes_with_a_model(tmp_path: Path) -> None:
    twin = "models: {'small:german': {engine: {checkpoint: /c}}}\n"
    ((_, line, found),) = problems(write(tmp_path, a=ADAPTED, b=twin))
    assert line == 6 and "has the name of a model or route, 'small:german'; rename one" in found


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("german:", "auto:", 6, "adapter 'auto' of 'small' has the name of a model or route"),
        ("german:", "'a:b':", 6, "expected a string of the form"),
        ("[default]", "default", 8, "principals must be a list, not 'default'"),
        ("[default]", "[[]]", 8, "principals.0 must be a string"),
        ("[more]", "['']", 8, "folders.0 must be a string that is not empty"),
        ("principals", "principal", 8, "did you mean 'principals'?"),
    ],
)
def test_wrong_adapters(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    found = problems(write(tmp_path, a=ADAPTED.replace(old, new)))
    assert any(at == line and message in text for _, at, text in found), found


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("models: {m: {upstream: {service: OpenAI}}}", "not 'OpenAI'; did you mean 'openai'?"),
        ("tenants: {default: {models: small}}", "must be a list, not 'small'; write it in [brackets]"),
        ("routes: {a: {model: b}, b: {model: small}}", "'b'; it is a route, and routes lead to models"),
        ("guardrails: {default: strict}", "profile; there is none: add it to guardrails.profiles"),
        ("routing: {headers: [X-Region]}", "not 'X-Region'; write the name in lower case"),
    ],
)
def test_a_usual_mistake_has_its_remedy(tmp_path: Path, text: str, remedy: str) -> None:
    found = problems(write(tmp_path, a=GOOD.replace("auto", "other"), b=text))
    assert any(message.endswith(remedy) for _, _, message in found), found


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("tenants: !whatever {r: {}}", "1:10"),
        ("tenants:\n  r: !include other.yaml", "2:6"),
        ("tenants:\n  !env r: {}", "2:3"),
        ("tenants: {r: {keys: !!python/tuple [key-00000000]}}", "1:21"),
        ("tenants: {r: {description: !!python/name:os.system x}}", "1:28"),
        ("tenants: !!set {r: {}}", "1:10"),
        ("tenants: !!str {r: {}}", "1:10"),
        ("x-a: &a !x {}\ntenants: {r: *a}", "1:6"),
        ("--- !doc\ntenants: {r: {}}", "1:5"),
    ],
)
def test_a_tag_that_nothing_reads_is_an_error(tmp_path: Path, text: str, place: str) -> None:
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(PolicyError, match=f"p.yaml:{place}: has a tag that policies do not have; remove it"):
        load_folder(tmp_path)


def test_yamls_own_tags_stay(tmp_path: Path) -> None:
    text = "tenants: !!map {r: {keys: !!seq [!!str key-00000000], limits: {requests_per_minute: !!int 3}}}"
    (tmp_path / "p.yaml").write_text(text)
    assert load_folder(tmp_path).policies.tenants["r"].limits.requests_per_minute == 3


@pytest.mark.parametrize(
    ("origin", "remedy"),
    [
        ("https://app.example.com/", "write 'https://app.example.com'"),
        ("'https://App.example.com:8443/a?b'", "write 'https://app.example.com:8443'"),
        ("app.example.com", "write 'https://app.example.com'"),
        ("localhost:5173", "write 'http://localhost:5173'"),
        ("https://*.example.com", "write each in full"),
        ("'null'", "write each in full"),
        ("any", "write each in full"),
    ],
)
def test_origins_are_explained(tmp_path: Path, origin: str, remedy: str) -> None:
    (tmp_path / "p.yaml").write_text(f"cors: {{origins: ['*', {origin}]}}")
    with pytest.raises(PolicyError) as caught:
        load_folder(tmp_path)
    said = str(caught.value)
    assert "cors.origins.1 must be a scheme and a host, perhaps a port" in said and remedy in said
    assert "^" not in said


@pytest.mark.parametrize(("text", "is_on"), [("", True), ("console: off", False), ("console: true", True)])
def test_a_switch_beside_the_sections(tmp_path: Path, text: str, is_on: bool) -> None:
    (tmp_path / "p.yaml").write_text(text)
    assert load_policies(tmp_path).console is is_on


@pytest.mark.parametrize("value", ["{}", "maybe", "'off'", "[off]", "1"])
def test_a_switch_is_true_or_false(tmp_path: Path, value: str) -> None:
    (tmp_path / "p.yaml").write_text(f"console: {value}")
    with pytest.raises(PolicyError, match="console must be true or false"):
        load_policies(tmp_path)


def test_a_switch_is_set_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("console: off\n")
    (tmp_path / "b.yaml").write_text("\nconsole: on\n")
    with pytest.raises(PolicyError, match=r"b.yaml:2:1: console is already defined at .*a.yaml:1:1"):
        load_policies(tmp_path)
