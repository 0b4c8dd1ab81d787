"""Files that tenants store, and batches: files of requests that the gateway answers in the background."""
