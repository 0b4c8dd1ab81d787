"""What the gateway tells about itself: OTLP traces, Prometheus metrics; never prompt text, never secrets."""
