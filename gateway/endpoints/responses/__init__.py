"""POST /v1/responses over chat."""
