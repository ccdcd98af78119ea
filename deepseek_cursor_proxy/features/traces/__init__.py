"""Traces: `trace` writes a private JSON file per request, and explains one; `command` is `explain`."""

COMMANDS = (
    {
        "name": "explain",
        "help": "where the reasoning in a trace came from",
        "run": "features.traces.command:explain",
        "add_flags": "features.traces.command:add_flags",
        "settings": None,
    },
)
