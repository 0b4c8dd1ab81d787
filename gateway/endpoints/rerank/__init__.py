"""/v1/rerank: documents in the order of their relevance to a query."""
