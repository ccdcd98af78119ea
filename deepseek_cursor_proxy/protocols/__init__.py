"""The APIs of clients, each a translation between their JSON and the canonical conversation; no I/O.

`request` reads every body; `chat`, `responses` and `anthropic` write the answers and never import each other.
"""
