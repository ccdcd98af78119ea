"""Counts the tokens of a prompt: `counter`.

`estimate` knows DeepSeek's layout and estimates without a vocabulary; `bpe` runs a tokenizer file.
"""
