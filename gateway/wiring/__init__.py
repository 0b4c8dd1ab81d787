"""The one place where the parts are connected."""
