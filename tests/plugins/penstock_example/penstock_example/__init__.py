"""Adds to Penstock: the provider API `parrot`."""
