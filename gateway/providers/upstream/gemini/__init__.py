"""Google's Gemini API as an upstream, also on Vertex AI: chats become contents, and their answers deltas."""
