"""Calls to DeepSeek or a passthrough upstream: connect, pool, limit the calls at once, read the response.

Other folders use `client` (sends a call), `connections` (its Destination), `response` (reads it), `call_limit`,
and for several upstreams `breaker` (whether one is worth asking) and `key_pool` (with which key).
"""
