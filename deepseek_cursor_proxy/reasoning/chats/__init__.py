"""A request compared with the one before it in its chat: the order of its tools, and where it diverged.

An exchange uses `tracker`, services own the `store`, observers read a `divergence`.
"""
