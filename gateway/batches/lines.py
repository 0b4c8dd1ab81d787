"""The lines of a batch's files, in OpenAI's format: requests in, answers and errors out."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.batches.records import BatchUsage, Fault, InputDetails, OutputDetails
from gateway.providers.upstream.answer_reader import MAX_USAGE_TOKENS

MAX_FAULTS = 100
"""Faults that a batch reports."""
MAX_ID_CHARS = 512
MODEL_IS_OPTIONAL = ("/v1/moderations",)
"""Endpoints whose requests need not name a model."""
_BLANK = b" \t\r\n"


class BatchLine(msgspec.Struct, frozen=True):
    """One request of an input file."""

    number: int  # counts from 1
    custom_id: str
    body: bytes  # JSON


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct, frozen=True):
    model: str | None = None
    stream: bool | None = None


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_body = msgspec.json.Decoder(_Body).decode


def check_lines(path: Path, endpoint: str, *, max_lines: int, max_line_bytes: int) -> tuple[int, list[Fault]]:
    """The number of requests in a file, and what is wrong with it, at most MAX_FAULTS. Raises OSError."""
    faults: list[Fault] = []
    first_with: dict[str, int] = {}  # custom_id → line
    for number, raw in _raw_lines(path, max_line_bytes):
        fault: Fault | None = None
        if len(first_with) == max_lines:
            return max_lines, [*faults, Fault("too_many_lines", f"At most {max_lines} lines.", number)]
        line = _checked(raw, number, endpoint, max_line_bytes)
        if isinstance(line, Fault):
            fault = line
        elif first_with.setdefault(line.custom_id, number) != number:
            text = f"The custom_id of line {first_with[line.custom_id]} is repeated: give each line its own."
            fault = Fault("duplicate_custom_id", text, number, "custom_id")
        if fault is not None:
            faults.append(fault)
            if len(faults) == MAX_FAULTS:
                break
    if not first_with and not faults:
        faults.append(Fault("empty_file", "The file has no lines: write one request per line."))
    return len(first_with), faults


def read_lines(path: Path) -> Iterator[BatchLine]:
    """The requests of a file that has been checked. Raises OSError."""
    for number, raw in _raw_lines(path, -1):
        line = _decode_line(raw)
        yield BatchLine(number, line.custom_id, bytes(line.body))


def _raw_lines(path: Path, max_bytes: int) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers; of a longer one the first bytes end the iteration."""
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(max_bytes + 1 if max_bytes >= 0 else -1):
            number += 1
            if raw.strip(_BLANK):
                yield number, raw
            if max_bytes >= 0 and len(raw) > max_bytes:
                return


def _checked(raw: bytes, number: int, endpoint: str, max_bytes: int) -> _Line | Fault:
    """Never quotes the line: it may hold a prompt."""
    if len(raw) > max_bytes:
        text = f"The line has more than {max_bytes} bytes, and no later line was checked: shorten it."
        return Fault("line_too_long", text, number)
    try:
        line = _decode_line(raw)
        body = _decode_body(line.body)
    except msgspec.ValidationError as error:
        return Fault("invalid_line", f"{error}. See the Batch API's input format.", number)
    except (ValueError, RecursionError):
        return Fault("invalid_json_line", "This line is not valid JSON.", number)
    if not 1 <= len(line.custom_id) <= MAX_ID_CHARS:
        text = f"A custom_id has 1 to {MAX_ID_CHARS} characters."
        return Fault("invalid_custom_id", text, number, "custom_id")
    if line.method != "POST":
        return Fault("invalid_method", "The method must be 'POST'.", number, "method")
    if line.url != endpoint:
        text = f"The url must be the batch's endpoint, {endpoint!r}."
        return Fault("invalid_url", text, number, "url")
    if body.model is None and endpoint not in MODEL_IS_OPTIONAL:
        return Fault("missing_required_parameter", "The body needs a 'model'.", number, "body.model")
    if body.stream:
        text = "Answers in a batch are not streamed: leave 'stream' out."
        return Fault("unsupported_parameter", text, number, "body.stream")
    return line


def answer_line(custom_id: str, status: int, request_id: str, body: bytes) -> bytes:
    """A line of the output or error file: what the endpoint answered."""
    answer: object
    try:
        answer = msgspec.Raw(msgspec.json.format(body, indent=-1))  # an upstream's may have line breaks
    except msgspec.DecodeError:
        answer = body.decode(errors="replace")
    response = {"status_code": status, "request_id": request_id, "body": answer}
    return _encoded(custom_id, response, None)


def unasked_line(custom_id: str, code: str, message: str) -> bytes:
    """A line of the error file: the request was never sent."""
    return _encoded(custom_id, None, {"code": code, "message": message})


def _encoded(custom_id: str, response: dict[str, Any] | None, error: dict[str, str] | None) -> bytes:
    line_id = "batch_req_" + secrets.token_hex(12)
    line = {"id": line_id, "custom_id": custom_id, "response": response, "error": error}
    return msgspec.json.encode(line) + b"\n"


_Tokens = Annotated[int, Meta(ge=0, le=MAX_USAGE_TOKENS)] | None


class _Details(msgspec.Struct):
    cached_tokens: _Tokens = 0
    reasoning_tokens: _Tokens = 0


class _Usage(msgspec.Struct):
    """Chat and completions name the fields in one way, Responses and Messages in another.

    In the input tokens of Messages, those of the cache are not included.
    """

    prompt_tokens: _Tokens = 0
    completion_tokens: _Tokens = 0
    input_tokens: _Tokens = 0
    cache_read_input_tokens: _Tokens = None
    cache_creation_input_tokens: _Tokens = None
    output_tokens: _Tokens = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


_decode_answer = msgspec.json.Decoder(_Answer).decode


def usage_of(body: bytes) -> BatchUsage:
    """The tokens of an answer; none where it does not say, or says what cannot be."""
    try:
        usage = _decode_answer(body).usage
    except (ValueError, RecursionError):  # an upstream's, which may be no JSON
        usage = None
    if usage is None:
        return BatchUsage()
    nothing = _Details()
    from_cache = usage.cache_read_input_tokens or 0
    num_input = usage.prompt_tokens or usage.input_tokens or 0
    num_input += from_cache + (usage.cache_creation_input_tokens or 0)
    num_output = usage.completion_tokens or usage.output_tokens or 0
    of_input = usage.prompt_tokens_details or usage.input_tokens_details or nothing
    of_output = usage.completion_tokens_details or usage.output_tokens_details or nothing
    cached, thought = from_cache + (of_input.cached_tokens or 0), of_output.reasoning_tokens or 0
    return BatchUsage(
        num_input, InputDetails(cached), num_output, OutputDetails(thought), num_input + num_output
    )
