"""Traces: `trace` writes a private JSON file per request, and explains one."""

COMMANDS = (
    {
        "name": "explain",
        "help": "where the reasoning in a trace came from",
        "run": "features.traces.trace:print_explanation",
        "add_flags": "features.traces.trace:add_flags",
        "settings": None,
    },
)
START_CHECKS = (("trace_dir", "features.traces.feature:check_directory"),)
