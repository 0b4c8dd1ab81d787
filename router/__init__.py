"""Which model should answer: signals, an estimate of quality, strategies. Pure decisions; knows no HTTP."""
