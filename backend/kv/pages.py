"""Page allocator: the free list and the reference counts of KV pages.

Plain Python without torch; the tensors are in kv/storage.py.
"""

from __future__ import annotations

from backend.errors import PageShortage

_FREE = -1
"""Reference count of a page on the free list. A count of 0 means that only the prefix tree keeps the page."""


class PagePool:
    """Free list and reference counts of `num_pages` pages. Every operation is O(1)."""

    __slots__ = ("_free", "_references", "num_pages")

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise ValueError(f"num_pages is {num_pages!r}; KV memory needs at least 1 page")
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))  # popped from the end: low numbers first
        self._references = [_FREE] * num_pages

    @property
    def num_free(self) -> int:
        """Pages on the free list."""
        return len(self._free)

    def references(self, page: int) -> int:
        """Return how many sequences use the page; 0 if it is free or only in the prefix tree."""
        return max(0, self._references[page])

    def is_free(self, page: int) -> bool:
        """True if the page is on the free list."""
        return self._references[page] == _FREE

    def allocate(self) -> int:
        """Pop a page from the free list, with one reference. Raises PageShortage when the list is empty."""
        if not self._free:
            raise PageShortage(f"all {self.num_pages} pages are allocated; evict or preempt first")
        page = self._free.pop()
        self._references[page] = 1
        return page

    def share(self, page: int) -> bool:
        """Add a reference to an allocated page; True if it had none before."""
        count = self._references[page]
        assert count != _FREE, f"page {page} is free and cannot be shared"
        self._references[page] = count + 1
        return count == 0

    def release(self, page: int) -> bool:
        """Remove a reference; True if it was the last. The caller then frees the page or keeps it cached."""
        count = self._references[page] - 1
        assert count >= 0, f"page {page} is released more often than it was allocated"
        self._references[page] = count
        return count == 0

    def free(self, page: int) -> None:
        """Put a page without references on the free list."""
        assert self._references[page] == 0, f"page {page} still has references, or is already free"
        self._references[page] = _FREE
        self._free.append(page)

    def check_invariants(self) -> None:
        """Raise AssertionError if free list and reference counts disagree. For tests: O(pages)."""
        free = set(self._free)
        assert len(free) == len(self._free), "a page is on the free list twice"
        for page, count in enumerate(self._references):
            assert count >= _FREE, f"page {page} has reference count {count}"
            assert (count == _FREE) == (page in free), f"page {page}: count {count}, free list disagrees"
