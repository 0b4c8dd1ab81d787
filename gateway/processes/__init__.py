"""Starts, supervises and ends the processes of `penstock serve`: engines, encoders, gateway workers."""
