"""Observers: what the proxy reports about requests, without any influence on them.

    events                   the events of a request, and the Observer protocol
    console                  four log lines per request
    trace, explain_trace     one JSON file per request, and `explain`, which reads it
    log_lines, log_writer    standard streams and a log that never block or stop the program

A new observer (metrics, say) is a class with `emit(event)`, added in `exchange/services`. Other folders import `events`
(to emit), `console` and `trace` (`exchange/services`), and `log_lines`, `explain_trace` (`cli`).
"""
