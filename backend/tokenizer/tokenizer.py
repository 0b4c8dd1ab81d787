"""Tokenizer: encoding, decoding and chat prompts for one checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from backend.errors import CheckpointError, PromptTooLong, RequestError, TemplateError
from backend.tokenizer.chat_template import ChatTemplate
from backend.tokenizer.detokenizer import Detokenizer
from backend.tokenizer.files import TokenizerFiles, as_added_token, read_files
from backend.tokenizer.thinking import ThinkingMode, thinking_mode
from backend.tokenizer.token_bytes import TokenBytes, read_rules, special_ids
from backend.tokenizer.tool_use import ToolUse, tool_use

Message = Mapping[str, Any]

LONG_TEXT_CHARS = 4096
"""Longer texts are encoded with the GIL released; shorter ones take a few milliseconds."""
USUAL_TOKEN_CHARS = 4
"""Characters per token of English text with a large vocabulary."""
NORMALIZER_SHRINKS = 4
"""Upper bound on the factor by which a normalizer shortens a text (composing accents, trimming spaces)."""
CUT_TOKENS = 64
"""Many more tokens than can differ at the end of a text where it is cut off."""
TAIL_TOKENS = 32
"""More tokens than a reasoning tag and a line break take in any vocabulary."""


class Tokenizer:
    """Encodes, decodes and renders chats as transformers does for the same checkpoint.

    Immutable after loading and thread-safe.
    """

    def __init__(self, backend: Backend, files: TokenizerFiles) -> None:
        source = str(files.folder / "tokenizer.json")
        rules = read_rules(files.decoder, source)
        self._backend = backend
        self._all_bytes = TokenBytes(backend.id_to_token, rules, frozenset())
        self._text_bytes = TokenBytes(backend.id_to_token, rules, special_ids(backend))
        self._special_tokens = {name: token.content for name, token in files.special_tokens.items()}
        self._templates = {
            name: ChatTemplate(text, str(files.folder)) for name, text in files.chat_templates.items()
        }
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self._longest_token = max(map(len, backend.get_vocab(with_added_tokens=True)), default=1)
        self.eos_token_ids = files.eos_token_ids
        self.is_multimodal = files.is_multimodal
        self.thinking = self._thinking_mode(files.chat_templates.get("default", ""))
        self.tool_use = tool_use(self.render_chat) if self.has_chat_template else ToolUse()
        named = ((token_id, self.token_text(token_id)) for token_id in sorted(self._text_bytes.hidden))
        self.hidden_tags = {token_id: text for token_id, text in named if self.thinking.tags.shows(text)}
        """Reasoning tags, or parts of them, that are special tokens here, by id: detokenizers skip them."""

    @classmethod
    def from_checkpoint(cls, folder: str | Path) -> Tokenizer:
        """Load from a Hugging Face folder. Raises CheckpointError."""
        files = read_files(Path(folder))
        try:
            backend = Backend.from_str(files.tokenizer)
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(
                f"{str(files.folder / 'tokenizer.json')!r} is not a tokenizer ({error}): fetch it again."
            ) from error
        backend.no_truncation()
        backend.no_padding()
        _add_configured_tokens(backend, files)
        return cls(backend, files)

    @property
    def has_chat_template(self) -> bool:
        """True if the checkpoint has a chat template."""
        return "default" in self._templates

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of special tokens, which have no text."""
        return self._text_bytes.hidden

    def special_id(self, text: str) -> int | None:
        """Return the id of the special token with this text, if any."""
        token_id: int | None = self._backend.token_to_id(text)
        return token_id if token_id in self.special_ids else None

    def encode(self, text: str, add_special_tokens: bool = False, max_tokens: int | None = None) -> list[int]:
        """Return the token ids of `text`; special tokens in it are parsed, as in transformers.

        `add_special_tokens` adds the tokens around a plain prompt (often BOS). Raises RequestError if the
        text has an unpaired surrogate, and PromptTooLong if it is found to exceed `max_tokens` without
        encoding all of it.
        """
        if max_tokens is not None:
            self._check_length(text, max_tokens)
        return self._encode(text, add_special_tokens)

    def encode_beginning(self, text: str, num_tokens: int) -> list[int]:
        """Return the first `num_tokens` token ids of `text`, encoding little more than these."""
        num_chars = self._first_chars(num_tokens)
        while num_chars < len(text):
            found = self._encode(text[:num_chars])
            if len(found) >= num_tokens + CUT_TOKENS:
                return found[:num_tokens]
            num_chars *= 4
        return self._encode(text)[:num_tokens]

    def _encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        try:
            if len(text) <= LONG_TEXT_CHARS:
                found = self._backend.encode(text, add_special_tokens=add_special_tokens)
            else:
                (found,) = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)
        except (UnicodeEncodeError, TypeError) as error:
            raise RequestError(_NOT_UNICODE) from error
        ids: list[int] = found.ids
        return ids

    def _check_length(self, text: str, max_tokens: int) -> None:
        """Raise PromptTooLong if the text, or a prefix of it, has clearly too many tokens.

        The time depends on `max_tokens`, not on the text: prefixes grow until they have as many tokens.
        """
        least = len(text) // (self._longest_token * NORMALIZER_SHRINKS)
        num_chars = self._first_chars(max_tokens)
        while least <= max_tokens and num_chars < len(text):
            # Cut off, a text may end in more tokens than as a part of the whole.
            least = len(self._encode(text[:num_chars])) * 7 // 8 - CUT_TOKENS
            num_chars *= 4
        if least > max_tokens:
            raise PromptTooLong(
                f"This model's maximum context length is {max_tokens} tokens. However, your prompt has "
                f"{len(text)} characters, which are at least {least} tokens. Please reduce its length."
            )

    @staticmethod
    def _first_chars(num_tokens: int) -> int:
        return max(LONG_TEXT_CHARS, USUAL_TOKEN_CHARS * (num_tokens + CUT_TOKENS))

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Return the text of these tokens, skipping unknown ids. Raises RequestError for negative ids."""
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens)
        try:
            return detokenizer.push(token_ids) + detokenizer.flush()
        except OverflowError as error:
            raise RequestError(f"A token id is out of range: ids are 0 to {self.vocab_size - 1}.") from error

    def detokenizer(
        self, *, skip_special_tokens: bool = True, continues: bool = False, shown: Collection[str] = ()
    ) -> Detokenizer:
        """Return an incremental decoder for one sequence.

        `continues`: the output continues the prompt's text (completions, a continued message), so a leading
        space is kept; otherwise it is a new text (a chat answer), as for decode(). `shown` are special tokens
        that are not skipped.
        """
        table = self._text_bytes if skip_special_tokens else self._all_bytes
        shown_ids = {self._backend.token_to_id(token) for token in shown} & table.hidden
        if shown_ids:
            table = TokenBytes(table.token_of, table.rules, table.hidden - shown_ids)
        return Detokenizer(table, continues=continues)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the exact bytes of a token inside a text, special tokens included."""
        return self._all_bytes[token_id]

    def token_text(self, token_id: int) -> str:
        """Return the text of a token; incomplete characters become U+FFFD."""
        return self._all_bytes[token_id].decode("utf-8", "replace")

    def opens_thought(self, prompt_token_ids: Sequence[int]) -> bool:
        """Return True if the prompt ends with the opening reasoning tag, so that the output starts inside."""
        tail = self.decode(prompt_token_ids[-TAIL_TOKENS:], skip_special_tokens=False)
        return tail.rstrip().endswith(self.thinking.tags.opening)

    def render_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,  # noqa: ANN401 - templates take any JSON value
    ) -> str:
        """Return the prompt of a chat. Raises TemplateError, with the template's line, if rendering fails.

        `messages` hold plain JSON values; `variables` are passed to the template (`enable_thinking` …).
        """
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        template = self._templates.get(name)
        if template is None:
            raise TemplateError(_NO_TEMPLATE, param="messages")
        return template.render(
            messages,
            {**self._special_tokens, "documents": None, **variables, "tools": tools},
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )

    def encode_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        max_tokens: int | None = None,
        **variables: Any,  # noqa: ANN401 - templates take any JSON value
    ) -> list[int]:
        """Return the token ids of the rendered chat; the template adds special tokens. Raises as `encode`."""
        prompt = self.render_chat(messages, add_generation_prompt, continue_final_message, tools, **variables)
        return self.encode(prompt, max_tokens=max_tokens)

    def _thinking_mode(self, source: str) -> ThinkingMode:
        def render(variables: dict[str, Any]) -> str:
            return self.render_chat([{"role": "user", "content": "Hello"}], **variables)

        return thinking_mode(render, source)


_NOT_UNICODE = "The text holds half of a surrogate pair (U+D800 to U+DFFF): send valid Unicode."
_NO_TEMPLATE = (
    "This model has no chat template: use /v1/completions, or put chat_template.jinja into its checkpoint."
)


def _add_configured_tokens(backend: Backend, files: TokenizerFiles) -> None:
    """Add the tokens that only tokenizer_config.json defines; tokenizer.json takes precedence."""
    path = files.folder / "tokenizer_config.json"
    known = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    listed = files.config.get("added_tokens_decoder") or {}
    try:
        by_id = [as_added_token(listed[key], path) for key in sorted(listed, key=int)]
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"`added_tokens_decoder` in {str(path)!r} is broken ({error}).") from error
    backend.add_tokens([token for token in by_id if token.content not in known])
    named: list[AddedToken] = [
        token
        for token in files.special_tokens.values()
        if token.content not in known or not known[token.content].special
    ]
    backend.add_special_tokens(named)
