"""`python -m gateway.cli` is `penstock`."""

from __future__ import annotations

import os
import sys

EXIT_INTERRUPTED, EXIT_CLOSED_PIPE = 130, 141
"""128 and the number of the signal, as shells report it."""


def run() -> int:
    """Run the command line. Ctrl-C, also while modules load, and a closed pipe end it without a traceback."""
    try:
        from gateway.cli.main import main  # here: it takes a while

        try:
            return main()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `| head`: what is left must not be written when the interpreter ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_CLOSED_PIPE


if __name__ == "__main__":
    sys.exit(run())
