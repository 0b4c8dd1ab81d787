"""Training of the classifier; see guardrails/REPORT.md."""
