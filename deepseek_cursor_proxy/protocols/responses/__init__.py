"""OpenAI Responses: the response object around an answer, its output items and events, and lists of stored ones."""
