"""Anthropic Messages: what is special in its requests, and its answers, events and errors."""
