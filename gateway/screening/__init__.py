"""Guardrails in the gateway: hooks over HTTP, threads for long texts, answers while they are streamed."""
