"""Usage: the requests that ended and their costs, kept for months, and daily sums for ever.

ledger     UsageLedger: writes every request that ended into the store's file, in batches, on a thread of its own
report     sums of the ledger by day, model, key, API or session, as the command prints and the dashboard shows them
dashboard  sums and requests of the ledger, for the dashboard
command    the commands `usage` and `balance`
"""

ADMIN_ROUTES = (
    ("/api/usage", "features.usage.dashboard:report"),
    # In place of the dashboard's own, which know what is in memory.
    ("/api/requests", "features.usage.dashboard:page"),
    ("/api/requests/(-[0-9]{1,15})", "features.usage.dashboard:details"),
)
_COMMAND = "features.usage.command:"
COMMANDS = (
    {
        "name": "usage",
        "help": "tokens used, and their estimated cost",
        "run": _COMMAND + "print_usage",
        "add_flags": _COMMAND + "add_flags",
    },
    {
        "name": "balance",
        "help": "what is left on your DeepSeek account",
        "run": _COMMAND + "print_balance",
        "settings": "cli.parser:add_config",
    },
)
