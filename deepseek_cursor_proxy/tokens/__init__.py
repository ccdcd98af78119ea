"""Counting prompt tokens: an estimate, or exact byte-pair encoding with a tokenizer file."""
