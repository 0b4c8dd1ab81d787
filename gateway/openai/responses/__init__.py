"""OpenAI's Responses API in front of the pipeline: translation to chat and back, and stored responses."""
