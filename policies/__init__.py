"""Policy documents: the models that are served and the routes to them."""
