"""Observers: what the proxy reports about requests, without any influence on them.

    events              the events of a request, and Observers, which pass them on
    console             four log lines per request
    standard_streams    stdout, stderr and a log that never block or stop the program

An observer is a class with a table `handlers`.
Other folders import `events` to emit; those that put the proxy together, and `cli`, import the others.
"""
