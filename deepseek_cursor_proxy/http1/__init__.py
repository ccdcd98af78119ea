"""HTTP/1.1 and server-sent events as bytes; no sockets.

`heads` and `bodies` read and write messages, and decode compressed bodies; `sse` reads and writes
events; `messages` has HttpRequest and HttpReply, the values between `server` and `api`.
"""
