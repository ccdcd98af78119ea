"""Anthropic's Messages API: Claude Code.

endpoints    the routes: create, count tokens
request      what only this API has in a request
writer       its answers and events
errors       its failures
"""
