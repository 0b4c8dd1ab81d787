"""Small trained classifiers: weights with digests, and logistic regression."""
