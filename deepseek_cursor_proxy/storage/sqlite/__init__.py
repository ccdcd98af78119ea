"""The SQLite engine: transactions that last or do nothing, and all SQL of the store.

    database      connections and transactions; the file opened, opened again, and read by commands
    schema        tables
    rows          the rows of every kind, as `storage.entries` wants them; pruning
    usage_rows    the ledger: rows, sums of days, and how they are read

Other folders import database and schema (`sessions/`), and usage_rows (`usage/`, `admin/`, `cli/`).
"""
