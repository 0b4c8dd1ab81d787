"""The policy documents: which models exist, which routes choose among them."""
