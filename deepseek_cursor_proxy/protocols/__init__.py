"""The APIs of clients: their JSON in, a ChatRequest out; deltas in, their JSON and events out. No I/O.

Every body, whatever its API, is read by `request`, which accepts any shape; `responses` and `anthropic` only rewrite
their own fields for it first. `chat`, `responses` and `anthropic` write the answers, each with a Writer (begin, write,
end, fail), and never import each other.
"""
