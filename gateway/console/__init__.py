"""The console: static pages over the JSON endpoints of `gateway/admin/`."""
