"""OpenAI's public surface: translation only, no decisions."""
