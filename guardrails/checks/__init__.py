"""The checks: each takes a reading of a text and gives findings with place, score and reason."""
