"""End to end: `penstock serve` as a child process, real sockets, the embedded model."""
