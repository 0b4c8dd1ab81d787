"""One engine over several processes: rank 0 plans, the others mirror what it does to memory and weights."""
