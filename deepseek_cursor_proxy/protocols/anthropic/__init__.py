"""Anthropic Messages: `request` reads what only it has, `writer` writes answers, `errors` failures."""
