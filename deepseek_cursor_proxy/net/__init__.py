"""Waits for sockets, and threads, shared by `server` (clients), `upstream` (DeepSeek) and `exchange`.

`wait` waits for a socket and watches the client meanwhile; a Wakeup ends the waits of other threads, a Deadline says
when a wait ends. `threads` has the threads.
"""
