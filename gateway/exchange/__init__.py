"""What travels through the pipeline: the request, its model and its answer."""
