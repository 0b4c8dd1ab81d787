"""HyperExperts: the adapters that HyperMoE generates for sets of chosen experts."""
