"""Counts the tokens of a prompt: `feature`. Responses, Messages, sessions and the limits of named keys need it.

`estimate` knows DeepSeek's layout and estimates without a vocabulary; `bpe` runs a tokenizer file.
"""

START_CHECKS = (("tokenizer", "features.tokens.feature:check_file"),)
