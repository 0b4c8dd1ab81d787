"""Judges one request and its answer: which texts are checked, by which checks, and what follows."""
