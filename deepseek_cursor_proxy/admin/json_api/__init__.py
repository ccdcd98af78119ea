"""The JSON of /api: functions and readers that `app` and `feed` call. .github/docs/observing.md has the shapes.

stats, requests, request_pages, usage, sessions, settings    one for each path
"""
