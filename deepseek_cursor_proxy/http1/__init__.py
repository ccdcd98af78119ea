"""HTTP/1.1 and server-sent events as bytes; no sockets.

`heads` and `bodies` read and write messages, `sse` events, `content_encoding` compressed bodies; `messages` has
HttpRequest and HttpReply, the values between `server` and `api`.
"""
