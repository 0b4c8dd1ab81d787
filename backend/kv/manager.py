"""KV pages of sequences: match a cached prefix, allocate, publish computed pages, release.

Full pages are shared and never written again; the page being filled belongs to one sequence. A page is
published only after its keys and values have been computed. A running sequence never swaps its pages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from backend.kv.checkpoints import CheckpointPool, StateCopy, is_stop, last_edge, next_stop
from backend.kv.pages import PagePool
from backend.kv.prefix_tree import Node, PrefixTree, page_digest, root_digest
from backend.kv.windows import WindowPages
from backend.types import PAGE_TOKENS, Sequence, StateCheckpoint


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The prefix hit of a waiting sequence. Valid until the tree changes."""

    nodes: list[Node]  # from the first page on
    num_evictable: int  # how many of them are evictable now, and no longer so once attached
    next_digest: bytes | None  # of the first full page that missed; None: no page missed
    checkpoint: StateCheckpoint | None = None  # of the recurrent state behind the nodes
    num_paged_tokens: int = (
        0  # with recurrent states: tokens whose pages are known, whether a state is or not
    )

    @property
    def num_tokens(self) -> int:
        """Tokens covered by the hit."""
        return len(self.nodes) * PAGE_TOKENS


@dataclass(slots=True, eq=False)
class _Chain:
    """The digests of one sequence's pages, computed on demand."""

    digests: list[bytes] = field(default_factory=list)  # [0] is the root's, [i + 1] page i's
    deepest: Node | None = None  # last published page: the sequence's own or an equal one of another
    num_published: int = 0  # pages up to and including `deepest`
    is_open: bool = True  # False: this sequence publishes no further pages
    branch: int = 0  # where it leaves the pages of others, and writes a checkpoint for those that follow


def pages_for(num_tokens: int) -> int:
    """Return the number of pages that this many tokens need."""
    return -(-num_tokens // PAGE_TOKENS)


class KVManager:
    """Allocates pages to sequences. `revision` and `kv_dtype` are part of every page's digest.

    With `checkpoints` the model has recurrent states: a prefix hit ends where a state is known. With
    `windows` layers have pages of their own, and a hit ends where their last ones are still there.
    Counters for metrics: free_pages, cached_pages, num_checkpoints, prefix_hit_tokens_total.
    """

    def __init__(
        self,
        num_pages: int,
        *,
        revision: str,
        kv_dtype: str,
        prefix_cache: bool = True,
        checkpoints: CheckpointPool | None = None,
        windows: WindowPages | None = None,
    ) -> None:
        self.num_pages = num_pages
        self.prefix_hit_tokens_total = 0
        self._revision = revision
        self._kv_dtype = kv_dtype
        self._prefix_cache = prefix_cache
        self._checkpoints = checkpoints
        self._windows = windows
        self._pool = PagePool(num_pages)
        self._tree = PrefixTree(num_pages)
        self._chains: dict[Sequence, _Chain] = {}
        self._told: set[bytes] = set()  # with recurrent states, where hits end

    @property
    def free_pages(self) -> int:
        """Pages available without preemption: on the free list or evictable."""
        return self._pool.num_free + self._tree.num_evictable

    @property
    def cached_pages(self) -> int:
        """Pages that no sequence uses and that only the prefix tree keeps."""
        return self._tree.num_evictable

    @property
    def num_checkpoints(self) -> int:
        """Recurrent states that are kept."""
        return 0 if self._checkpoints is None else len(self._checkpoints)

    def cached_digests(self) -> list[bytes]:
        """The digests of all pages that a hit may end with; with recurrent states, only those before one."""
        if self._checkpoints is None:
            return self._tree.digests()
        return [digest for digest in self._checkpoints.digests() if self._tree.find(digest) is not None]

    def take_changes(self) -> dict[bytes, bool]:
        """New (True) and lost (False) ones of these since the last call, by digest; the first starts it."""
        if self._checkpoints is None:
            return self._tree.take_changes()
        told, self._told = self._told, set(self.cached_digests())
        return {digest: digest in self._told for digest in told ^ self._told}

    def match(self, sequence: Sequence) -> PrefixMatch:
        """Find the longest cached prefix of a sequence without pages. Changes nothing.

        A full hit still computes the last token, whose logits give the next one; as shared pages are never
        written, that means the last token's whole page.
        """
        if not self._may_hit(sequence):
            return PrefixMatch([], 0, None)
        match = self._match_pages(sequence)
        if self._windows is not None:
            match = _cut_at(match, self._windows.longest_hit([node.page for node in match.nodes]))
        return match if self._checkpoints is None else _cut(match, self._checkpoints)

    def _match_pages(self, sequence: Sequence) -> PrefixMatch:
        chain = self._chain(sequence)
        nodes: list[Node] = []
        num_evictable = 0
        for index in range((len(sequence.tokens) - 1) // PAGE_TOKENS):
            digest = self._digest(chain, sequence, index)
            node = self._tree.find(digest)
            if node is None:
                return PrefixMatch(nodes, num_evictable, digest)
            nodes.append(node)
            num_evictable += node.pins == 0
        return PrefixMatch(nodes, num_evictable, None)

    def attach(self, sequence: Sequence, match: PrefixMatch) -> None:
        """Give the matched pages to the sequence; it then computes from the token after them."""
        assert not sequence.pages, f"sequence {sequence.request.request_id!r} already has pages"
        for node in match.nodes:
            if self._pool.share(node.page):
                self._tree.pin(node)
            sequence.pages.append(node.page)
        sequence.num_computed_tokens = sequence.num_read_tokens = match.num_tokens
        sequence.checkpoint = match.checkpoint
        if self._windows is not None:
            self._windows.attach(sequence)
        if self._checkpoints is not None and match.checkpoint is not None:
            self._checkpoints.restore(match.checkpoint, sequence.row)
        chain = self._chain(sequence)
        chain.branch = last_edge(match.num_paged_tokens)
        # A sequence that skips prefix hits does not publish either: that would pin equal pages beside its
        # own.
        chain.is_open = self._may_hit(sequence)
        chain.num_published = len(match.nodes)
        chain.deepest = match.nodes[-1] if match.nodes else None
        if sequence.num_preemptions == 0 and not sequence.request.resume_token_ids:
            sequence.num_cached_tokens = match.num_tokens
            self.prefix_hit_tokens_total += match.num_tokens

    def grow(self, sequence: Sequence, end: int) -> int:
        """Allocate pages for the tokens before position `end`, evicting where needed.

        Returns the position up to which the sequence now has pages: `end`, or less if pages ran out.
        """
        pages = sequence.pages
        missing = min(pages_for(end) - len(pages), self.free_pages)
        if self._windows is not None:
            missing = min(missing, self._windows.num_free)
        for _ in range(missing):
            pages.append(self._allocate())
        if self._windows is not None:
            self._windows.grow(sequence)
        return min(end, len(pages) * PAGE_TOKENS)

    def advance(self, sequence: Sequence, num_tokens: int) -> None:
        """Mark tokens as computed and publish the pages that they filled. Call when their step was read."""
        before = sequence.num_read_tokens
        after = before + num_tokens
        assert after <= len(sequence.pages) * PAGE_TOKENS, "more tokens computed than pages allocated"
        sequence.num_read_tokens = after
        if after > sequence.num_computed_tokens:  # else one is in flight
            sequence.num_computed_tokens = after
        if after // PAGE_TOKENS > before // PAGE_TOKENS:
            self._publish(sequence, after // PAGE_TOKENS)
            if self._checkpoints is not None and last_edge(after) > before:
                self._write_checkpoint(sequence, self._checkpoints)
        if self._windows is not None:
            self._windows.leave_behind(sequence, before)

    def chunk_end(self, sequence: Sequence) -> int:
        """Where the next chunk of a running sequence ends at the latest: a checkpoint is written there."""
        end, chain = len(sequence.tokens), self._chain(sequence)
        if self._checkpoints is None or not chain.is_open:
            return end
        return next_stop(sequence.num_computed_tokens, end, chain.branch)

    def has_window_room(self, sequence: Sequence, match: PrefixMatch, running: Iterable[Sequence]) -> bool:
        """Whether layers with windows of their own have room for it beside all that are running."""
        hit = [node.page for node in match.nodes]
        return self._windows is None or self._windows.has_room(len(sequence.tokens), hit, running)

    def take_state_copies(self) -> list[StateCopy]:
        """Copies of recurrent states to make now: call after each plan and each commit."""
        return [] if self._checkpoints is None else self._checkpoints.take_copies()

    def trim(self, sequence: Sequence) -> None:
        """Free the pages after the computed tokens: they held rejected draft tokens."""
        pages = sequence.pages
        while len(pages) > pages_for(sequence.num_computed_tokens):
            page = pages.pop()
            self._pool.release(page)  # the last reference: such a page is never shared or published
            self._pool.free(page)
        if self._windows is not None:
            self._windows.trim(sequence)

    def next_digest(self, sequence: Sequence) -> bytes | None:
        """Return the digest of the prompt page that a running sequence will publish next, if any."""
        index = sequence.num_read_tokens // PAGE_TOKENS
        chain = self._chain(sequence)
        if not (self._prefix_cache and chain.is_open) or (index + 1) * PAGE_TOKENS > len(sequence.tokens):
            return None
        return self._digest(chain, sequence, index)

    def release(self, sequence: Sequence) -> None:
        """Release all pages of the sequence and reset its progress. Published pages stay in the tree."""
        if self._windows is not None:
            self._windows.release(sequence)
        for page in reversed(sequence.pages):
            if not self._pool.release(page):
                continue
            node = self._tree.node_of(page)
            if node is None:
                self._pool.free(page)
            else:
                self._tree.unpin(node)
        sequence.pages.clear()
        sequence.checkpoint = None
        sequence.num_computed_tokens = sequence.num_read_tokens = sequence.num_pending = 0
        self._chains.pop(sequence, None)

    def check_invariants(self, sequences: list[Sequence]) -> None:
        """Raise AssertionError on a leaked or miscounted page, given all sequences that may hold pages."""
        self._pool.check_invariants()
        self._tree.check_invariants()
        if self._checkpoints is not None:
            self._checkpoints.check_invariants()
        if self._windows is not None:
            self._windows.check_invariants(sequences)
        users = [0] * self.num_pages
        for sequence in sequences:
            assert len(sequence.pages) * PAGE_TOKENS >= sequence.num_computed_tokens
            assert sequence.num_computed_tokens >= sequence.num_read_tokens
            for page in sequence.pages:
                users[page] += 1
        for page, count in enumerate(users):
            assert self._pool.references(page) == count, f"page {page}: {count} users, other count"
            node = self._tree.node_of(page)
            assert self._pool.is_free(page) == (count == 0 and node is None), f"page {page} is leaked"
            assert node is None or count == 0 or node.pins > 0, f"page {page} is used but evictable"
        leaked = self._chains.keys() - set(sequences)
        assert not leaked, f"the digest chains of {len(leaked)} sequences are leaked"

    def _may_hit(self, sequence: Sequence) -> bool:
        # Prompt logprobs need the logits of every prompt token; once they are computed, hits are fine.
        wants_prompt = sequence.request.params.prompt_logprobs is not None
        return self._prefix_cache and not (wants_prompt and sequence.num_output_tokens == 0)

    def drop_cached(self) -> None:
        """Free all pages that no sequence uses."""
        while self._tree.num_evictable:
            self._evict()

    def _evict(self) -> None:
        page = self._tree.evict()
        self._pool.free(page)
        if self._windows is not None:
            self._windows.forget(page)

    def _allocate(self) -> int:
        if not self._pool.num_free:
            self._evict()
        return self._pool.allocate()

    def _chain(self, sequence: Sequence) -> _Chain:
        chain = self._chains.get(sequence)
        if chain is None:
            request = sequence.request
            root = root_digest(self._revision, self._kv_dtype, request.tenant_salt, request.adapter)
            chain = self._chains[sequence] = _Chain([root])
        return chain

    def _digest(self, chain: _Chain, sequence: Sequence, index: int) -> bytes:
        digests = chain.digests
        while len(digests) <= index + 1:
            start = (len(digests) - 1) * PAGE_TOKENS
            digests.append(page_digest(digests[-1], sequence.tokens[start : start + PAGE_TOKENS]))
        return digests[index + 1]

    def _write_checkpoint(self, sequence: Sequence, checkpoints: CheckpointPool) -> None:
        """Keep the state at the last edge, which the chunk ended at or logged, if it is to be kept."""
        chain = self._chain(sequence)
        position = last_edge(sequence.num_computed_tokens)
        num_pages = position // PAGE_TOKENS
        if chain.num_published < num_pages or not is_stop(position, len(sequence.tokens), chain.branch):
            return
        sequence.checkpoint = checkpoints.write(
            chain.digests[num_pages],
            position,
            sequence.row,
            sequence.checkpoint,
            is_kept=position <= sequence.num_prompt_tokens,
        )

    def _publish(self, sequence: Sequence, end: int) -> None:
        """Publish the pages before the page `end`."""
        chain = self._chain(sequence)
        if not (self._prefix_cache and chain.is_open):
            return
        for index in range(chain.num_published, end):
            if chain.deepest is not None and chain.deepest.is_evicted:
                # The parent was an equal page of another sequence and has been evicted.
                chain.is_open = False
                return
            digest = self._digest(chain, sequence, index)
            node = self._tree.find(digest)
            if node is None:
                node = self._tree.insert(chain.deepest, digest, sequence.pages[index])
            if self._windows is not None:
                self._windows.publish(node.page, sequence.window_pages[index])
            chain.deepest = node
            chain.num_published = index + 1


def _cut_at(match: PrefixMatch, count: int) -> PrefixMatch:
    """The first nodes of the hit."""
    if count == len(match.nodes):
        return match
    nodes = match.nodes[:count]
    return PrefixMatch(nodes, sum(node.pins == 0 for node in nodes), match.nodes[count].digest)


def _cut(match: PrefixMatch, checkpoints: CheckpointPool) -> PrefixMatch:
    """The hit up to the last page behind which a recurrent state is known."""
    for count in range(len(match.nodes), 0, -1):
        checkpoint = checkpoints.find(match.nodes[count - 1].digest)
        if checkpoint is not None:
            nodes = match.nodes[:count]
            num_evictable = sum(node.pins == 0 for node in nodes)
            return PrefixMatch(nodes, num_evictable, match.next_digest, checkpoint, match.num_tokens)
    return PrefixMatch([], 0, match.next_digest, None, match.num_tokens)
