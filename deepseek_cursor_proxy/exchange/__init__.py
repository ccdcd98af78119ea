"""One generation, from a ChatRequest to its last Delta: prepare, call DeepSeek, remember, hand on.

`exchange` runs one answer, `choices` several (n > 1), `background_jobs` those without a client; `services` holds what
they share.
"""
