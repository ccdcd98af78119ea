"""Observers: what the proxy reports about requests, without any influence on them.

    events              the events of a request, and the Observer protocol
    console             four log lines per request
    trace               one JSON file per request; explain_trace, which `explain` runs, reads it
    standard_streams    stdout, stderr and a log that never block or stop the program, by log_writer

A new observer (metrics, say) is a class with `emit(event)`, added in `exchange/services` (see its field `observers`).
Other folders import `events` to emit; `exchange/services` and `cli` import the others.
"""
