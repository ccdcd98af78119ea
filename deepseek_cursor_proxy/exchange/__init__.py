"""One generation, from a client's request to its last Delta: prepare, call DeepSeek, store, forward.

    client_request     one request with all that is known about it, and its report, which ends in one terminal event
    exchange           one answer: open, deltas, close; the loop that sends until an upstream accepts; what is stored
    attempt            a request as one upstream gets it: send, read
    failover           the attempt that follows a failed call or a broken answer, and the table that decides it
    upstreams          the servers that calls go to, in which order, and the form of reasoning that each has
    services           everything that exchanges and endpoints share
    feature            the interface of a feature to the core

Missing reasoning is settled by each attempt before its call, in `send`, by `reasoning/restore.prepare`: a transcript, a
filler, or a 409.

What happens on a failure (a 429, a refused key, a broken answer, a history that is refused all the same): `attempt`
raises the error, `exchange` calls `Failover.next_attempt`. That asks the table `next_step`, waits or changes to another
key or upstream, and returns the attempt that `exchange` sends next, or raises the error that the client gets.
"""
