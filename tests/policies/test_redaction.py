"""No message about policies shows a key, wherever it stands and whatever is wrong with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from policies.errors import PolicyError
from policies.load import load_folder
from policies.redaction import hidden, looks_secret, redacted

CANARIES = ("sk-canary-4f9a77b1", "CanaryHunter2x", "c4n4ryc4n4ryc4n4ryc4n4ry")
FIELDS = {
    "keys of a tenant": "tenants:\n  acme:\n    keys: {}\n",
    "a list of keys": "tenants:\n  acme:\n    keys:\n      - {}\n    tier: 7\n",
    "name of a tenant": "tenants:\n  {}: {{tier: 7, models: [none]}}\n",
    "administrators": "admin:\n  principals: [{}]\n",
    "operators": "cache:\n  operators: [{}]\n  mode: 9\n",
    "exempt": "guardrails:\n  profiles: {{p: {{exempt_tenants: [{}]}}}}\n",
    "variable of a key": "models:\n  m:\n    upstream: {{service: openai, api_key_env: {}}}\n",
    "a key itself": "models:\n  m:\n    upstream: {{service: openai, api_key: {}}}\n",
    "headers": "models:\n  m:\n    upstream:\n      headers:\n        authorization: {}\n",
    "login": "models:\n  m:\n    upstream:\n      base_url: https://user:{}@host/v1\n",
    "query": "models:\n  m:\n    upstream:\n      base_url: https://host/v1?key={}\n",
    "proxy": "models:\n  m:\n    upstream:\n      base_url: https://host/v1\n      proxy: http://u:{}@p:1\n",
    "Redis": "cache:\n  redis:\n    url_env: redis://:{}@host/0\n",
    "replicas": "replicas:\n  redis_url_env: {}\n",
    "hook": "guardrails:\n  profiles:\n    p: {{hooks: {{h: {{url: 'http://h:x/', api_key_env: {}}}}}}}\n",
    "anchor": "x-key: &it {}\ntenants: {{a: {{keys: [*it], limits: *it}}}}\n",
}
FORMS = (
    "{0}",
    '"{0}"',
    "[{0}]",
    "{{{0}: 1}}",
    "[[{0}]]",
    "[{0}",
    '"{0}',
    "*{0}",
    "!{0} x",
    "&{0}",
    "{0}: {0}",
    "%{0}",
    "@{0}",
    "`{0}",
    "{0} {{",
    "- {0}",
    "|\n  {0}",
    "? {0}",
    "!!int {0}",
    "{0}\n{0}: {0}\n{0}: {0}",
    "\t{0}",
    "{0}\x00",
)

ODD_CANARIES = (
    "hunter2-canary", "Sup3r!canary", "canary words here", "c\u00e4nary-\u00fcber-1",
    'can"ary\\n1\\t2', "can'ary1", "canary" * 30,
)  # fmt: skip
FOLDERS = (
    "tenants: {a: {keys: [KEY]}}",
    "tenants: {a: {keys: KEY}}",
    "tenants: {a: {keys: {KEY: 1}}}",
    "tenants: {a: {keys: [[KEY]], tier: 3}}",
    "tenants: {a: {key: KEY}, b: KEY}",
    "tenants: {KEY: {limits: {requests_per_minute: x}}}",
    "tenants: {KEY: {modles: [small]}}",
    "tenants: {KEY: KEY}",
    "tenants: {KEY: {}, a: {tier: KEY, keys: [key-00000000, KEY]}}\ntiers: {gold: {}}",
    "admin: {principals: [KEY]}\nrouting: {expose: maybe}",
    "admin: {principals: KEY}",
    "models: {a: {upstream: {base_url: 'http://h', api_key_env: KEY}}}\nrouting: {expose: KEY}",
    "routes: {a: {model: small, rules: [{when: \"tenant.name == 'KEY'\", model: small}]}}",
    "tenants: {a: {<<: KEY, keys: {<<: KEY}}}",
    "models: {a: {upstream: {base_url: 'http://h', api_key: KEY}}, KEY: 3}",
    "models: {a: {upstream: {base_url: 'http://u:KEY@h', api_key_header: KEY}}}",
    "models: {a: {upstream: {base_url: 'http://h', proxy: 'http://u:KEY@h', timeout: 'http://u:KEY@h'}}}",
    "replicas: {redis_url_env: 'redis://:KEY@h'}",
    "cache: {redis: {url_env: 'redis://:KEY@h'}, mode: 'redis://:KEY@h'}",
    "x-a: &a {api_key: KEY}\nmodels: {a: {upstream: {<<: *a, base_url: KEY}}}",
    "probes: {a: {tenant: KEY, headers: {x-a: KEY}, ask: [], expect: {model: small, status: KEY}}}",
    "probes: {a: {headers: {authorization: [KEY]}, request: {authorization: !x KEY}, expect: {}}}",
    "guardrails: {profiles: {p: {exempt_tenants: [KEY]}}}",
    "tenants: {a: {keys: [KEY]}\nmodels: [",
    "tenants: {a: {keys: [*KEY]}}",
    "tenants: {a: {keys: [!KEY x]}}",
    "tenants: {a: {keys: [!KEY!x x]}}",
    "tenants: {a: {keys: [&KEY x, &KEY x]}}",
    "tenants:\n  a:\n    keys:\n    - KEY\n   b: KEY",
    "tenants:\n\ta: KEY",
    "tenants: KEY",
    "api_key: KEY\nKEY: KEY",
    'routes: {a: {rules: [{when: "tenant.name == sk-canary77 &&", model: small}]}}',
    "routes: {a: {rules: [{when: tenant.name == sk-canary77, model: small}]}}",
)


@pytest.mark.parametrize("field", FIELDS)
def test_no_error_or_warning_shows_a_key(tmp_path: Path, field: str) -> None:
    path = tmp_path / "p.yaml"
    shown = []
    for canary, form in (*((each, "{0}") for each in CANARIES), *((CANARIES[1], each) for each in FORMS)):
        path.write_text(FIELDS[field].format(form.format(canary)))
        try:
            said = [*load_folder(path).warnings]
        except PolicyError as error:
            said = [*error.problems]
        shown += [(canary, form, str(each)) for each in said if canary in str(each)]
    assert not shown


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_key_with_odd_characters_is_not_shown_either(tmp_path: Path, folder: str) -> None:
    (tmp_path / "models.yaml").write_text("models: {small: {upstream: {base_url: 'http://h/v1'}}}\n")
    for canary in ODD_CANARIES:
        text = yaml.safe_dump(canary, allow_unicode=True, width=1000).partition("\n")[0]
        (tmp_path / "a.yaml").write_text(folder.replace("KEY", text))
        try:
            said = [*load_folder(tmp_path).warnings]
        except PolicyError as error:
            said = [*error.problems]
        assert not [str(each) for each in said if "anary" in each.message or "can\\" in each.message], canary


@pytest.mark.parametrize(
    "text",
    [
        "sk-abcdef12",
        "Bearer abc",
        "gsk_0123456789",
        "https://u:p@host",
        "eyJhbGciOiJIUzI1NiJ9.e30.x",
        "a1b2c3d4e5f6a7b8c9d0",
        "123e4567-e89b-12d3-a456-426614174000",
        "AKIAIOSFODNN7EXAMPLE",
    ],
)
def test_what_looks_like_a_key(text: str) -> None:
    assert looks_secret(text) and text not in redacted(f"has {text!r}, not it")


@pytest.mark.parametrize(
    "text",
    [
        "key-0a1b2c3d",
        "claude-sonnet-4-5-20250929",
        "Meta-Llama-3.1-8B-Instruct-Turbo",
        "OPENAI_API_KEY",
        "acme-prod",
        "models.gpt-4o-mini-2024-07-18.upstream",
        "https://host:8000/v1",
        "builtin:all-minilm-l6-v2",
        "default",
    ],
)
def test_what_does_not(text: str) -> None:
    assert not looks_secret(text) and redacted(text, ["abc"]) == text


def test_values_of_harmless_fields_are_shown(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("models: {m: {upstream: {service: openaii}}}\n")
    with pytest.raises(PolicyError, match="not 'openaii'; did you mean 'openai'"):
        load_folder(tmp_path)


@pytest.mark.parametrize("key", ["gsk_abcdefgh12345678", "sk_live_canary12", "AKIAIOSFODNN7EXAMPLE"])
def test_a_key_in_place_of_its_variable(tmp_path: Path, key: str) -> None:
    (tmp_path / "p.yaml").write_text(f"models: {{m: {{upstream: {{service: groq, api_key_env: {key}}}}}}}\n")
    with pytest.raises(
        PolicyError, match="holds what looks like the secret itself; export it in an"
    ) as caught:
        load_folder(tmp_path)
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("models:\n\tsmall: {}\n", "indent with spaces"),
        ('routes:\n  a:\n    system: "say "hi""\n', "write quotes inside a value as the other kind"),
        ("models: {m: {upstream: {service: groq}}\n", "close the bracket"),
        ("x-a: b: c\n", "quote a value that holds a colon"),
        ("models: {m: {upstream: {base_url: 'https://me:hunter22@h/v1'}}}", "without a login or a query"),
        ("tenants: {a: {keys: [hunter22]}}", "`penstock keys id` prints it"),
        (
            "cache: {redis: {url_env: 'redis://:hunter22@h'}}",
            "cache.redis.url_env must be a string of the form",
        ),
    ],
)
def test_remedies(tmp_path: Path, text: str, remedy: str) -> None:
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(PolicyError) as caught:
        load_folder(tmp_path)
    assert remedy in str(caught.value) and "hunter22" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "models.sk-victim- BBBB2222.upstream",
        "'sk-victim-\\nBBBB2222'",
        "sk-vic\n\t tim-BBBB2222",
        "sk-victim-\\\n  BBBB2222",
        "sk%2Dvictim%2dBBBB2222",
        "sk%2\n  dvictim-BBBB2222",
        "%73%6B-victim-BBBB2222 at 5 %",
        "c2stdmljdGltLUJCQkIyMjIy",
        "Basic dTpzay12aWN0aW0tQkJCQjIyMjI=",  # after u:
        "/srv/sk-victim-BBBB2222.yaml:1:1",
    ],
)
def test_a_secret_in_disguise_is_hidden(text: str) -> None:
    shown = hidden(text, ["other-secret", "sk-victim-BBBB2222"])
    assert "***" in shown and not [part for part in ("tim", "BBBB", "c2stdm", "ay12aW") if part in shown]


def test_short_secrets_are_not_found_across_words() -> None:
    assert hidden("it is open as a door", ["soap", "open as", "ad"]) == "it is *** a door"


def test_a_files_name_shows_no_key(tmp_path: Path) -> None:
    (tmp_path / "sk-canary-4f9a77b1.yaml").write_text("models: {a: {modle: 1}}\n")
    with pytest.raises(PolicyError) as caught:
        load_folder(tmp_path)
    assert "canary-4f" not in str(caught.value) and "***.yaml:1:14: unknown key" in str(caught.value)
