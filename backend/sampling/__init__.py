"""From logits to the next token, and from text to the place where it stops."""
