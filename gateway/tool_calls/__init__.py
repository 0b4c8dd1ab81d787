"""Tool calls in a model's text: where they begin and end, in the syntax of each model family."""
