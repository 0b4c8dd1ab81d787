"""KV pages for sequences: find a known prefix, grow, publish what is computed, release.

Full pages are shared and never written again; the page being filled belongs to one sequence. A page is
published only after its keys and values have been computed. A running sequence never exchanges its pages.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from backend.kv.pages import PagePool
from backend.kv.prefix_tree import Node, PrefixTree, page_digest, root_digest
from backend.types import PAGE_TOKENS, Sequence


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What the prefix tree knows of a waiting sequence. Valid until the next change of the tree."""

    nodes: list[Node]  # from the first page on
    num_evictable: int  # of these, how many stop being available to others when they are attached
    next_digest: bytes | None  # the first full page that is not known; None: all that may hit does

    @property
    def num_tokens(self) -> int:
        """Tokens that need not be computed."""
        return len(self.nodes) * PAGE_TOKENS


@dataclass(slots=True, eq=False)
class _Chain:
    """The identities of one sequence's pages, computed as they are needed."""

    digests: list[bytes] = field(default_factory=list)  # [0] is the root's, [i + 1] page i's
    deepest: Node | None = None  # last page that the tree knows: our own, or an equal one of somebody else
    num_published: int = 0  # pages up to and including `deepest`
    is_open: bool = True  # False: this sequence publishes no more


def pages_for(num_tokens: int) -> int:
    """Pages that hold this many tokens."""
    return -(-num_tokens // PAGE_TOKENS)


class KVManager:
    """Owner of the page numbers. `revision` and `kv_dtype` are part of every page's identity.

    Counters for metrics: free_pages, cached_pages, prefix_hit_tokens_total.
    """

    def __init__(self, num_pages: int, *, revision: str, kv_dtype: str, prefix_cache: bool = True) -> None:
        self.num_pages = num_pages
        self.prefix_hit_tokens_total = 0
        self._revision = revision
        self._kv_dtype = kv_dtype
        self._prefix_cache = prefix_cache
        self._pool = PagePool(num_pages)
        self._tree = PrefixTree(num_pages)
        self._chains: dict[Sequence, _Chain] = {}

    @property
    def free_pages(self) -> int:
        """Pages that a sequence can get without preemption: free, or evictable from the prefix tree."""
        return self._pool.num_free + self._tree.num_evictable

    @property
    def cached_pages(self) -> int:
        """Pages that only the prefix tree keeps."""
        return self._tree.num_evictable

    def match(self, sequence: Sequence) -> PrefixMatch:
        """Find the longest known prefix of a sequence without pages. Changes nothing.

        At least the last token is left to compute, since its logits give the next one; as shared pages are
        never written, that means its whole page.
        """
        if not self._may_hit(sequence):
            return PrefixMatch([], 0, None)
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
        """Give the matched pages to the sequence, whose computing then starts behind them."""
        assert not sequence.pages, f"sequence {sequence.request.request_id!r} already has pages"
        for node in match.nodes:
            if self._pool.share(node.page):
                self._tree.pin(node)
            sequence.pages.append(node.page)
        sequence.num_computed_tokens = match.num_tokens
        chain = self._chain(sequence)
        # Who ignores known prefixes stays private: publishing would pin the equal pages beside its own.
        chain.is_open = self._may_hit(sequence)
        chain.num_published = len(match.nodes)
        chain.deepest = match.nodes[-1] if match.nodes else None
        if sequence.num_preemptions == 0:
            sequence.num_cached_tokens = match.num_tokens
            self.prefix_hit_tokens_total += match.num_tokens

    def grow(self, sequence: Sequence, end: int) -> int:
        """Take pages for the tokens before position `end`, evicting where needed.

        Returns the position up to which the sequence now has room, at most `end`: less when pages ran out.
        """
        pages = sequence.pages
        missing = pages_for(end) - len(pages)
        for _ in range(min(missing, self.free_pages)):
            pages.append(self._take())
        return min(end, len(pages) * PAGE_TOKENS)

    def advance(self, sequence: Sequence, num_tokens: int) -> None:
        """Count tokens as computed and publish the pages that they filled. Call after the forward pass."""
        before = sequence.num_computed_tokens
        after = before + num_tokens
        assert after <= len(sequence.pages) * PAGE_TOKENS, "computed tokens lie outside of the pages"
        sequence.num_computed_tokens = after
        if after // PAGE_TOKENS > before // PAGE_TOKENS:
            self._publish(sequence)

    def trim(self, sequence: Sequence) -> None:
        """Give back the pages behind what is computed: they held drafts that were rejected."""
        pages = sequence.pages
        while len(pages) > pages_for(sequence.num_computed_tokens):
            page = pages.pop()
            self._pool.release(page)  # never shared, never published: nobody else has it
            self._pool.give_back(page)

    def next_digest(self, sequence: Sequence) -> bytes | None:
        """Identity of the prompt page that a running sequence computes next, if it will be published."""
        index = sequence.num_computed_tokens // PAGE_TOKENS
        chain = self._chain(sequence)
        if not (self._prefix_cache and chain.is_open) or (index + 1) * PAGE_TOKENS > len(sequence.tokens):
            return None
        return self._digest(chain, sequence, index)

    def release(self, sequence: Sequence) -> None:
        """Take every page from the sequence and reset what it has computed. Published pages stay findable."""
        for page in reversed(sequence.pages):
            if not self._pool.release(page):
                continue
            node = self._tree.node_of(page)
            if node is None:
                self._pool.give_back(page)
            else:
                self._tree.unpin(node)
        sequence.pages.clear()
        sequence.num_computed_tokens = 0
        self._chains.pop(sequence, None)

    def check_invariants(self, sequences: list[Sequence]) -> None:
        """Raise AssertionError on a leaked or wrongly counted page. `sequences`: all that may hold pages."""
        self._pool.check_invariants()
        self._tree.check_invariants()
        users = [0] * self.num_pages
        for sequence in sequences:
            assert len(sequence.pages) * PAGE_TOKENS >= sequence.num_computed_tokens
            for page in sequence.pages:
                users[page] += 1
        for page, count in enumerate(users):
            assert self._pool.references(page) == count, f"page {page}: {count} users, other count"
            node = self._tree.node_of(page)
            assert self._pool.is_free(page) == (count == 0 and node is None), f"page {page} is leaked"
            assert node is None or count == 0 or node.pins > 0, f"page {page} is used but evictable"
        strangers = self._chains.keys() - set(sequences)
        assert not strangers, f"{len(strangers)} sequences left their chains behind"

    def _may_hit(self, sequence: Sequence) -> bool:
        # Prompt logprobs need the logits of every prompt token; once they are out, hits are welcome.
        wants_prompt = sequence.request.params.prompt_logprobs is not None
        return self._prefix_cache and not (wants_prompt and sequence.num_output_tokens == 0)

    def _take(self) -> int:
        if not self._pool.num_free:
            self._pool.give_back(self._tree.evict())
        return self._pool.take()

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

    def _publish(self, sequence: Sequence) -> None:
        chain = self._chain(sequence)
        if not (self._prefix_cache and chain.is_open):
            return
        for index in range(chain.num_published, sequence.num_computed_tokens // PAGE_TOKENS):
            if chain.deepest is not None and chain.deepest.is_evicted:
                # An equal page of somebody else was our parent and is gone: nothing can hang below it.
                chain.is_open = False
                return
            digest = self._digest(chain, sequence, index)
            node = self._tree.find(digest)
            if node is None:
                node = self._tree.insert(chain.deepest, digest, sequence.pages[index])
            chain.deepest = node
            chain.num_published = index + 1
