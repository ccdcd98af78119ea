"""What a request has to do with the one before it in its chat: the order of its tools, and where it diverged.

`tracker` is what an exchange uses; `store` keeps it.
"""
