"""`penstock eval`: questions with known answers, through the HTTP API of any OpenAI-compatible server."""
