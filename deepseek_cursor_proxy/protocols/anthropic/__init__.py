"""Anthropic Messages: `request` reads what only it has, `writer` writes answers of `blocks`, `errors` failures."""
