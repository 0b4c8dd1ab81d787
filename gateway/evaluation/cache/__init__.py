"""`penstock eval cache`: how often the semantic cache is right, on pairs and streams of questions."""
