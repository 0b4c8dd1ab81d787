"""`penstock eval router`: how well an estimate of the gain sends prompts to a weak or a strong model."""
