"""What tenants store, with OpenAI's client: chat completions and conversations."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.conftest import MODEL, StartServer
from tests.e2e.server import Server
from tests.e2e.upstream import Upstream
from tests.gateway.database.postgres_server import PostgresServer

QUESTION: Any = [{"role": "user", "content": "What is 17 + 25?"}]


@pytest.fixture
def strict(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=server.base_url,
        api_key=server.api_key,
        max_retries=0,
        timeout=60,
        _strict_response_validation=True,
    ) as client:
        yield client


@pytest.mark.parametrize("model", [MODEL, "remote"])
def test_chats_are_stored_for_every_model(strict: openai.OpenAI, upstream: Upstream, model: str) -> None:
    tag = {"test": f"stored {model}"}
    whole = strict.chat.completions.create(model=model, messages=QUESTION, store=True, metadata=tag)
    assert strict.chat.completions.retrieve(whole.id) == whole
    with strict.chat.completions.stream(model=model, messages=QUESTION, store=True, metadata=tag) as stream:
        streamed = stream.get_final_completion()
    stored = strict.chat.completions.retrieve(streamed.id)
    assert stored.choices[0].message.content == whole.choices[0].message.content
    found = [chat.id for chat in strict.chat.completions.list(model=model, metadata=tag)]
    assert found == [whole.id, streamed.id]
    changed = strict.chat.completions.update(whole.id, metadata={"test": "changed"})
    assert changed.choices == whole.choices
    assert [chat.id for chat in strict.chat.completions.list(metadata=tag)] == [streamed.id]
    assert strict.chat.completions.delete(whole.id).deleted
    with pytest.raises(openai.NotFoundError):
        strict.chat.completions.retrieve(whole.id)
    if model == "remote":
        assert "store" not in upstream.seen[-1].body


def test_the_messages_of_a_chat(client: openai.OpenAI) -> None:
    """Not strictly validated: the client's type of a message allows only the role of an answer."""
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, store=True)
    (message,) = client.chat.completions.messages.list(answer.id)
    assert (message.id, message.content) == (f"{answer.id}-0", QUESTION[0]["content"])


def test_a_conversation(strict: openai.OpenAI) -> None:
    talk = strict.conversations.create(metadata={"a": "b"}, items=[{"role": "developer", "content": "Hi."}])
    response = strict.responses.create(model=MODEL, conversation=talk.id, input="What is 17 + 25?")
    assert response.conversation is not None and response.conversation.id == talk.id
    (added,) = strict.conversations.items.create(talk.id, items=[{"role": "user", "content": "Bye."}]).data
    listed = list(strict.conversations.items.list(talk.id, order="asc", limit=2))
    roles = [item.role for item in listed if item.type == "message"]
    assert roles == ["developer", "user", "assistant", "user"] and listed[-1] == added
    assert strict.conversations.items.retrieve(added.id or "", conversation_id=talk.id) == added
    assert strict.conversations.items.delete(added.id or "", conversation_id=talk.id).id == talk.id
    assert strict.conversations.update(talk.id, metadata={"c": "d"}).metadata == {"c": "d"}
    assert strict.conversations.retrieve(talk.id).metadata == {"c": "d"}
    assert strict.conversations.delete(talk.id).deleted


def test_gateways_share_postgres_through_a_kill(
    start_server: StartServer, upstream: Upstream, tmp_path: Path
) -> None:
    database = PostgresServer()
    entry = f"{{upstream: {{base_url: '{upstream.base_url}'}}}}"
    (tmp_path / "models.yaml").write_text(f"models: {{remote: {entry}}}")
    arguments = ("--policies", str(tmp_path))
    servers = [start_server(*arguments, environment={"PENSTOCK_DATABASE_URL": database.url}) for _ in "12"]
    one, other = (openai.OpenAI(base_url=s.base_url, api_key="none", max_retries=0) for s in servers)
    response = one.responses.create(model="remote", input="first")
    servers[0].process.send_signal(signal.SIGKILL)
    servers[0].process.wait()
    following = other.responses.create(
        model="remote", input="second", previous_response_id=response.id, stream=True
    )
    assert list(following)[-1].type == "response.completed"
    asked = [message["content"] for message in upstream.seen[-1].body["messages"]]
    assert asked == ["first", "echo: first", "second"]
    assert not (servers[1].data_dir / "objects.sqlite").exists()
    one.close()
    other.close()
    servers[1].close()
    database.close()
