"""HTTP endpoints: `routes` maps a request to one of them, each turns an HttpRequest into an HttpReply.

`chat`, `responses` and `messages` are the three APIs; `passthrough` relays models that are asked elsewhere.
"""
