"""The engine step: plan, run (prepare, forward, sample), commit, report."""
