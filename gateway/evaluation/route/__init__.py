"""`penstock eval route`: a route of a running gateway beside its models, in accuracy and machine seconds."""
