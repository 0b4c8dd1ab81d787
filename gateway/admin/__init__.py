"""Penstock's own endpoints for operators: policies, cache, adapters, feedback, health."""
