"""Calls to DeepSeek: connect, keep connections, limit how many run, retry, read the response.

Other folders use `client` (send a call), `response` (read it), `call_limit` and `retry`.
"""
