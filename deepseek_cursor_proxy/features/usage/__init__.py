"""Usage: the requests that ended and their costs, kept for months, and daily sums for ever.

ledger     UsageLedger: writes every request that ended into the store's file, in batches, on a thread of its own
report     sums of the ledger by day, model, key, API or session, as the command prints and the dashboard shows them
admin      sums and requests of the ledger, for the dashboard
command    the commands `usage` and `balance`
"""

ADMIN_ROUTES = (
    ("/api/usage", "features.usage.admin:report"),
    # In place of the dashboard's own, which know what is in memory.
    ("/api/requests", "features.usage.admin:page"),
    ("/api/requests/(-[0-9]{1,15})", "features.usage.admin:details"),
)
