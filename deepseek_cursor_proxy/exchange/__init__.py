"""One generation, from a ChatRequest to its last Delta: prepare, call DeepSeek, store, hand on.

    exchange           one answer: open, deltas, close; the loop that sends until an upstream accepts
    attempt            a request as one upstream gets it: send, read
    plan               the attempt that follows a failed call or a broken answer
    next_step          the table that decides what follows
    targets            the upstreams and keys of a request: which is asked next, after which pause, and what a failure
                       says about it
    retries            which failures pass by themselves, and the pause before the next call (back-off)
    recorder           stores each turn that is complete
    choices            several answers (n > 1), with the same interface
    call_context       for whom a call is made, what is asked, and the report of it, which ends in one terminal event
    upstreams          the servers that calls go to, and in which order
    host_choice        the API to call one of them with
    response_cache     identical questions, answered without a call
    background_jobs    work without a client: Job, Jobs
    services           everything that exchanges and endpoints share

What happens on a failure (a 429, a refused key, a broken answer, missing reasoning): `attempt` raises the error,
`exchange` hands it to `plan`, `plan` to `targets`. `targets` asks the table in `next_step`, then pauses or turns to
another key or upstream. `plan` returns the next attempt, which `exchange` sends, or raises the error that the client
gets.

Other folders import exchange, choices, call_context, upstreams, background_jobs and services.
"""
