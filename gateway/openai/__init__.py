"""OpenAI's HTTP API: translation only, no decisions."""
