"""`penstock eval guardrails`: how well the checks find what they should, and leave alone what they should."""
