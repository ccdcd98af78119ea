"""The `doctor` command: looks at everything between a client and DeepSeek, and names the remedy for what is wrong.

    checks                    the table of checks, run side by side, each within its time
    subject                   what is looked at: the settings, also damaged ones, the key, the proxy that runs
    finding                   the result of a check: good, a warning, failed or skipped
    this_machine              Python and the files of the package
    settings_file             the settings and their file
    running_proxy, listeners  the proxy that runs, its port and its dashboard
    store                     the store and its disk
    upstreams                 the way to each upstream, the clock, keys, balance and models
    tunnel, clients           who leads here from outside
    tool_round                a chat with tools through the proxy
    page, privacy             the results as text or JSON, also without anything private

A check looks (I/O, facts as values) and then judges, which is a pure function of the facts. Nothing is changed: no
file is written but an empty one beside the store, for a moment; the address that a dead proxy left is deleted.
`cli/doctor_command.py` is the command.
"""
