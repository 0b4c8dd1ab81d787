"""The stages of the pipeline: one file and one function each."""
