"""Draft tokens in a plan: they use only pages and tokens that no other sequence needs in the step."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from backend.kv.manager import KVManager
from backend.scheduler.config import SchedulerConfig
from backend.types import Draft, DraftTree, ScheduledChunk, Sequence


def add_drafts(
    chunks: list[ScheduledChunk], drafts: Mapping[Sequence, Draft], kv: KVManager, config: SchedulerConfig
) -> int:
    """Extend decode chunks by their drafts and return the number of draft tokens. Call it last."""
    left = config.max_batch_tokens - sum(chunk.num_tokens for chunk in chunks)
    added = 0
    for index, chunk in enumerate(chunks):
        sequence = chunk.sequence
        draft = drafts.get(sequence)
        if not draft or chunk.num_tokens != 1 or chunk.end != len(sequence.tokens):
            continue
        # The last token is sampled but never computed.
        useful = sequence.request.params.max_tokens - sequence.num_output_tokens - 1
        if config.max_draft_tokens is not None:
            chain = draft.first_path() if isinstance(draft, DraftTree) else draft
            draft = chain[: config.max_draft_tokens]
        if isinstance(draft, DraftTree):
            most = min(left - added, config.max_model_tokens - chunk.end)
            chunks[index] = _add_tree(chunk, draft.cut(useful, most), useful, kv)
            added += chunks[index].num_tokens - 1
            continue
        wanted = min(len(draft), useful, left - added)
        if wanted > 0:
            wanted = kv.grow(sequence, chunk.end + wanted) - chunk.end
        if wanted > 0:
            chunks[index] = replace(chunk, num_tokens=1 + wanted, draft=tuple(draft[:wanted]))
            added += wanted
    return added


def _add_tree(chunk: ScheduledChunk, tree: DraftTree, max_depth: int, kv: KVManager) -> ScheduledChunk:
    """Extend a chunk by the nodes of a draft tree that fit the free pages."""
    if len(tree):
        tree = tree.cut(max_depth, kv.grow(chunk.sequence, chunk.end + len(tree)) - chunk.end)
    parents = () if tree.is_chain else tree.parents
    return replace(chunk, num_tokens=1 + len(tree), draft=tree.tokens, parents=parents)
