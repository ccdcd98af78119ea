"""HTTP endpoints: HttpRequest in, HttpReply out. Other folders import `routes`, which imports endpoints on demand.

`endpoint` has the steps that all APIs share, `reply` the HTTP reply of an answer and what a protocol's Writer is;
`chat`, `responses`, `stored_responses` and `messages` are the APIs; `passthrough` is for models of another upstream.
"""
