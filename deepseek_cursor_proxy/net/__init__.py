"""Waiting on sockets, shared by `server` (clients) and `upstream` (DeepSeek)."""
