"""Anthropic Messages: `request` reads what only this API has, `writer` writes answers, `errors` failures."""
