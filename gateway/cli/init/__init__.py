"""`penstock init`: a first policy folder, from flags or from questions."""
