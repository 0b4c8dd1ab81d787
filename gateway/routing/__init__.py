"""Which model answers a request, decided at run time."""
