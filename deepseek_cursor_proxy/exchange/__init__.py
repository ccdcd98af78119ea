"""One generation, from a ChatRequest to its last Delta: prepare, call DeepSeek, remember, hand on.

    exchange           one answer: open, deltas, close
    upstream_events    its first stage: DeepSeek's response as parsed events, in the order they are handed on
    recorder           its second stage: stores each turn that is complete
    choices            several answers (n > 1), with the same interface
    call_context       CallContext and GenerationRequest: for whom a call is made, and what is asked
    upstream_request   a request as one upstream gets it
    upstream_call      sends in one loop until an upstream accepts, and reads the answer
    next_step          the table of what follows a failed call or a broken answer
    plan               the upstreams and keys of a request; takes the step that the table names
    cached_call        upstream_call for a request that uses the response cache
    upstreams          the servers that calls go to, in which order, and with which API
    pictures           descriptions, for a model that sees no pictures
    background_jobs    work without a client: Job, Jobs
    request_report     the events of one request, from whichever part ends it; the terminal one is emitted once
    services           everything that exchanges and endpoints share

A call that fails (upstream_call) and an answer that breaks (exchange) take the same way: plan.after collects the facts,
the table in next_step decides, and upstream_call sends what follows.

Other folders import all but the two stages, upstream_request, next_step, plan and cached_call.
"""
