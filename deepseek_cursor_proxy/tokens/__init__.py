"""Counts the tokens of a prompt. Other folders import `counter` alone.

`estimate` knows DeepSeek's layout and estimates without a vocabulary; `bpe` runs a tokenizer file.
"""
