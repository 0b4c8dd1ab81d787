from __future__ import annotations

import pytest

from guardrails.checks.personal_data.patterns import KINDS, PatternFinder

RANDOM = "a8Xk2mN9qL4wZ7vBc3Rt6YpS1dF5gH0jKlQe"
PEM = "MIIEpAIBAAKCAQEA7bq98AyNrOHsqyIvPw/X8Ck5wGYtOHq3lPQ1cUaVYQ8nGeWh\n" * 3


def found(text: str) -> list[tuple[str, str]]:
    return [(span.kind, text[span.start : span.end]) for span in PatternFinder(KINDS).spans(text)]


@pytest.mark.parametrize(
    "key",
    [
        f"sk-ant-api03-{RANDOM}", f"sk-proj-{RANDOM}", f"sk-{RANDOM}", "AKIAIOSFODNN7EXAMPLE",
        f"ghp_{RANDOM}", f"github_pat_11ABC_{RANDOM}", f"glpat-{RANDOM[:20]}",
        "xoxb-123456789012-abcdefABCDEF", f"hf_{RANDOM}", f"npm_{RANDOM}",
        f"pypi-AgEIcHlwaS5vcmc{RANDOM}{RANDOM}", f"sk_live_{RANDOM[:24]}", f"AIzaSy{RANDOM[:33]}",
        f"SG.{RANDOM[:22]}.{RANDOM}", f"hvs.{RANDOM}", f"gsk_{RANDOM}", f"dop_v1_{RANDOM}", f"r8_{RANDOM}",
    ],
)  # fmt: skip
def test_keys_with_a_known_prefix(key: str) -> None:
    assert found(f"use {key}, please") == found(f'"{key}"') == found(f"x\\n{key}\\n") == [
        ("api_key", key)
    ] or ([kind for kind, _ in found(key)] == ["api_key"])


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        (f"aws_secret_access_key = {RANDOM}", "api_key", RANDOM),
        (f"Authorization: Bearer {RANDOM}", "api_key", RANDOM),
        (f'{{"client_secret": "{RANDOM}"}}', "api_key", RANDOM),
        (f"AccountKey={RANDOM}==;Endpoint", "api_key", f"{RANDOM}=="),
        (f"x-api-key: {RANDOM}", "api_key", RANDOM),
        ("DB_PASSWORD=letmein", "password", "letmein"),
        ("my password is hunter2!", "password", "hunter2!"),
        ('password: "correcthorse"', "password", "correcthorse"),
        ('{\\"password\\": \\"s3cr3t-42\\"}', "password", "s3cr3t-42"),
        ("postgres://bob:Xy7pq@db.example.org/app", "password", "bob:Xy7pq"),
    ],
)
def test_values_that_a_name_announces(text: str, kind: str, value: str) -> None:
    assert found(text) == [(kind, value)]


@pytest.mark.parametrize(
    "text",
    [
        "password = getpass()", "password=password", "password: str = None",
        "password=os.environ['DB_PASSWORD']", "password = config.db.password", "token = tokens[i]",
        "max_tokens: 4096", "token: identifier", "your password is required",
        "The password is case-sensitive.", "api_key=YOUR_API_KEY", "secret: ${SECRET}",
        "export TOKEN=<your-token>", "sk-fading-circle-container", "key = value",
        "primary key: 12345678abcdef", "postgres://user:password@localhost/db", "http://localhost:8080/a@b",
        "pwd", "password:", "sha256=9f86d081", "the secret is out",
        "cancellation token is passed along to the worker", "-----BEGIN PRIVATE KEY-----",
    ],
)  # fmt: skip
def test_code_and_prose_are_no_secrets(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize(
    "key",
    [
        f"-----BEGIN RSA PRIVATE KEY-----\n{PEM}-----END RSA PRIVATE KEY-----",
        f"-----BEGIN OPENSSH PRIVATE KEY-----\n{PEM}AQ==\n-----END OPENSSH PRIVATE KEY-----",
        f"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES,0F\n\n{PEM}".rstrip(),
        f"-----BEGIN PRIVATE KEY-----\n{PEM}-----END PRIVATE KEY-----".replace("\n", "\\n"),
        f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{PEM}=aB3x\n-----END PGP PRIVATE KEY BLOCK-----",
    ],
)
def test_private_keys(key: str) -> None:
    assert found(f"My key:\n{key}\nThanks, what now?") == [("private_key", key)]


def test_a_web_token() -> None:
    token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijklmnop1234"
    assert found(f"Cookie: session={token};") == [("jwt", token)]
