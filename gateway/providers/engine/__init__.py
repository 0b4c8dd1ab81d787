"""Our own engine as a provider: prompts to tokens on the way in, tokens to text on the way out."""
