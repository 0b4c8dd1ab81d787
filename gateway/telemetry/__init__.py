"""OTLP traces and Prometheus metrics of the gateway; never prompt text, never secrets."""
