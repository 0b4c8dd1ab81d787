"""The places that answer for an upstream's model: which is asked, and when one is asked again."""
