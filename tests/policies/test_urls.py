"""Hosts and ports of URLs."""

from __future__ import annotations

import pytest

from policies.urls import api_url_fault, url_fault


@pytest.mark.parametrize(
    "url",
    [
        "https://host/v1",
        "http://host:8000/v1",
        "http://host:/v1",
        "http://127.0.0.1:1",
        "http://[fd00::1]:65535/v1",
        "https://my_host.example.",
        "https://münchen.example/v1",
        "http://user:pass:word@proxy:3128",
    ],
)
def test_urls_that_can_be_connected_to(url: str) -> None:
    assert url_fault(url) == ""


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("http://h:65536", "port"),
        ("http://h:0", "port"),
        ("http://h:-1", "port"),
        ("http://h:http", "port"),
        ("http://u:secret@h:1:2", "port"),
        ("http://", "host"),
        ("http://:80", "host"),
        ("http://a..b", "host"),
        (f"http://{'a' * 64}.example", "host"),
        ("http://1.2.3.999", "host"),
        ("http://[v1.x]", "host"),
        ("http://a%b", "host"),
        ("http://☃.example", "host"),
        ("http://[::1", "IPv6"),
    ],
)
def test_urls_that_cannot(url: str, fault: str) -> None:
    assert fault in url_fault(url) and url not in url_fault(url) and "secret" not in url_fault(url)


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("https://api.openai.com", "lacks the API's path; write https://api.openai.com/v1"),
        ("https://API.groq.com/", "write https://api.groq.com/openai/v1, or `service: groq`"),
        ("https://g/v1beta/models/gemini-2.5-flash:generateContent", "name the model with the key `model`"),
        ("https://h/v1/models/x", "ends in /models/x: name the model"),
    ],
)
def test_the_base_of_another_api(url: str, fault: str) -> None:
    assert fault in api_url_fault(url)


@pytest.mark.parametrize(
    "url",
    ["https://api.openai.com/v1", "http://127.0.0.1:8000", "https://bedrock-runtime.us-east-1.amazonaws.com"],
)
def test_bases_that_are_right(url: str) -> None:
    assert api_url_fault(url) == ""
