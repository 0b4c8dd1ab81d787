"""The models of flags, the same for both commands that serve them."""

from __future__ import annotations

from gateway.cli.main import parse


def test_serve_and_batch_take_the_same_flags() -> None:
    flags = ["--model", "a=/a", "--model", "b=/b", "--upstream", "c=openai", "--only"]
    for command in (["serve"], ["batch", "in", "-o", "out"]):
        found = parse([*command, *flags])
        assert (found.model, found.upstream, found.only) == (["a=/a", "b=/b"], ["c=openai"], True)
        assert parse(command).model == []
