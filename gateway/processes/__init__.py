"""Supervision of the processes that `penstock serve` runs: engines, encoders and gateway workers."""
