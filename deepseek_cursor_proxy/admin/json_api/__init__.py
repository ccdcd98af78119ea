"""The JSON of /api: functions and readers that `app` and `feed` call. .github/docs/observing.md has the shapes.

stats (with the settings), requests, usage, sessions    one for each path
"""
