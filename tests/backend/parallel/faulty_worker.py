"""A rank that cannot compute steps with one token, and otherwise is as any."""

from __future__ import annotations

import sys

import numpy as np

from backend.layers.attention import AttentionContext
from backend.parallel import worker
from backend.parallel.messages import Forward

BAD_TOKEN = 1234


def main() -> int:
    plan = worker.Worker._open

    def call(self: worker.Worker, message: Forward) -> AttentionContext:
        if BAD_TOKEN in np.frombuffer(message.token_ids, dtype=np.int32):
            raise MemoryError("no memory")
        return plan(self, message)

    worker.Worker._open = call  # type: ignore[method-assign]
    return worker.main()


if __name__ == "__main__":
    sys.exit(main())
