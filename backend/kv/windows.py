"""Pages of the layers with a sliding window: a sequence gives back those that its next token does not see.

Plain Python. A sequence has as many of them as of its other pages, but holds only the last ones. Published
ones are known by the page that the other layers have in their place, and the least recently used of those
without users makes room for another: then a hit has to end elsewhere.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from backend.kv.pages import PagePool
from backend.types import PAGE_TOKENS, Sequence

_CHUNKS_SHARE = 8
"""One page in that many is left to chunks of prompts when a sequence is admitted."""


class WindowPages:
    """Pages of their own for the layers that see `window` tokens, the query's own included."""

    __slots__ = ("_evictable", "_own_of", "_page_of", "_pool", "_window")

    def __init__(self, num_pages: int, window: int) -> None:
        self._window = window
        self._pool = PagePool(num_pages)
        self._own_of: dict[int, int] = {}  # page of a node of the prefix tree → the page kept here
        self._page_of: dict[int, int] = {}  # and the other way round
        self._evictable: OrderedDict[int, None] = OrderedDict()  # of those, least recently used first

    @property
    def num_free(self) -> int:
        """Pages on the free list or evictable."""
        return self._pool.num_free + len(self._evictable)

    def first(self, num_tokens: int) -> int:
        """The first page that the token after these sees."""
        return max(0, num_tokens + 1 - self._window) // PAGE_TOKENS

    def longest_hit(self, pages: list[int]) -> int:
        """Behind how many of a prefix's pages a sequence can go on: their window has to be here."""
        longest = run = 0
        for count, page in enumerate(pages, 1):
            run = run + 1 if page in self._own_of else 0
            if run >= count - self.first(count * PAGE_TOKENS):
                longest = count
        return longest

    def has_room(self, tokens: int, hit: list[int], running: Iterable[Sequence]) -> bool:
        """Whether a sequence of that many `tokens` fits beside all that are running, behind these pages."""
        free = self.num_free - self._pool.num_pages // _CHUNKS_SHARE
        for sequence in running:
            held = len(sequence.window_pages) - self.first(sequence.num_read_tokens)
            free -= 1 + max(0, self._most(len(sequence.tokens), sequence.num_read_tokens) - held)
        start = len(hit) * PAGE_TOKENS
        tail = [self._own_of[page] for page in hit[self.first(start) :]]
        num_shared = sum(own not in self._evictable for own in tail)
        return self._most(tokens, start) - num_shared <= free

    def attach(self, sequence: Sequence) -> None:
        """Give it the last pages of its prefix hit."""
        first = self.first(sequence.num_read_tokens)
        sequence.window_pages = [0] * first  # never read
        for page in sequence.pages[first:]:
            own = self._own_of[page]
            if self._pool.share(own):
                del self._evictable[own]
            sequence.window_pages.append(own)

    def grow(self, sequence: Sequence) -> None:
        """Give it as many pages as it has others."""
        for _ in range(len(sequence.pages) - len(sequence.window_pages)):
            if not self._pool.num_free:
                own, _ = self._evictable.popitem(last=False)
                del self._own_of[self._page_of.pop(own)]
                self._pool.free(own)
            sequence.window_pages.append(self._pool.allocate())

    def publish(self, page: int, own: int) -> None:
        """A running sequence's page is what a node of the tree with this `page` has here, if it has none."""
        if page not in self._own_of:
            self._own_of[page] = own
            self._page_of[own] = page

    def leave_behind(self, sequence: Sequence, before: int) -> None:
        """Give back what its next token does not see; its number of computed tokens was `before`."""
        first = self.first(sequence.num_read_tokens)
        self._release(sequence.window_pages[self.first(before) : first])

    def trim(self, sequence: Sequence) -> None:
        """Give back what is more than its other pages."""
        kept = len(sequence.pages)
        self._release(reversed(sequence.window_pages[kept:]))
        del sequence.window_pages[kept:]

    def release(self, sequence: Sequence) -> None:
        """Give back all; its number of computed tokens must not have been reset yet."""
        first = self.first(sequence.num_read_tokens)
        self._release(reversed(sequence.window_pages[first:]))
        sequence.window_pages.clear()

    def forget(self, page: int) -> None:
        """The node of this page was evicted."""
        own = self._own_of.pop(page, -1)
        if own >= 0:
            del self._page_of[own]
            if own in self._evictable:
                del self._evictable[own]
                self._pool.free(own)

    def check_invariants(self, sequences: list[Sequence]) -> None:
        """Raise AssertionError on a leaked or miscounted page, given all sequences that may hold some."""
        self._pool.check_invariants()
        users = [0] * self._pool.num_pages
        for sequence in sequences:
            assert len(sequence.window_pages) == len(sequence.pages)
            for own in sequence.window_pages[self.first(sequence.num_read_tokens) :]:
                users[own] += 1
        assert {page: own for own, page in self._page_of.items()} == self._own_of
        for own, count in enumerate(users):
            is_known = own in self._page_of
            assert self._pool.references(own) == count, f"page {own}: {count} users, other count"
            assert (own in self._evictable) == (is_known and not count), f"page {own}: wrongly evictable"
            assert self._pool.is_free(own) == (not is_known and not count), f"page {own} is leaked"

    def _most(self, num_tokens: int, num_computed: int) -> int:
        """Pages that a sequence of `num_tokens` tokens holds at most from here on, but for its chunks."""
        left = -(-num_tokens // PAGE_TOKENS) - self.first(num_computed)
        return min(left, -(-(self._window - 1) // PAGE_TOKENS) + 1)

    def _release(self, pages: Iterable[int]) -> None:
        for own in pages:
            if not self._pool.release(own):
                continue
            if own in self._page_of:
                self._evictable[own] = None
            else:
                self._pool.free(own)
