"""OpenAI's Responses API: Codex.

endpoints           the routes: create, stored responses, input tokens, compaction
envelope            the options of a request, and the response object around its answer
writer              its output items and its events
store               stored responses, a table of the store's file
background_jobs     responses that are generated while no client waits
"""
