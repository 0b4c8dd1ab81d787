"""`penstock models`: the policies' models with their versions, stages and evaluations; a registry in YAML."""
