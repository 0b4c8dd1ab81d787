"""Answers kept and shared: recording and replay, single-flight, and the client's directives."""
