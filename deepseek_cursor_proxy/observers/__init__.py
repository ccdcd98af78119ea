"""Observers: what the proxy reports about requests, without any influence on them.

    events              the events of a request, and Observers, which pass them on
    console             four log lines per request
    request_log         the requests in flight and the last thousand that ended, without a text of them
    trace               one JSON file per request; `explain` reads it
    standard_streams    stdout, stderr and a log that never block or stop the program

A new observer is a class with a table `handlers`, added in `exchange/services` (see its field `observers`); one that
needs only how requests ended subscribes to the RequestLog.
Other folders import `events` to emit; `exchange/services` and `cli` import the others.
"""
