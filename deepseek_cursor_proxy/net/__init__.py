"""Waits for sockets, shared by `server` (clients), `upstream` (DeepSeek) and `exchange`.

`wait` waits for a socket and watches the client meanwhile, `wakeup` ends the waits of other threads, `deadline` says
when a wait ends.
"""
