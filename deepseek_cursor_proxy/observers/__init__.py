"""Observers: what the proxy reports about requests, without any influence on them.

    events              the events of a request, and Observers, which pass them on
    console             four log lines per request
    request_log         the requests in flight and the last thousand that ended, without their texts
    standard_streams    stdout, stderr and a log that never block or stop the program

An observer is a class with a table `handlers`; one that needs only the ends of requests subscribes to the RequestLog.
Other folders import `events` to emit; those that put the proxy together, and `cli`, import the others.
"""
