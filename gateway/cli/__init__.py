"""The command line: `penstock serve | check | chat | adapters | eval | schema`."""
