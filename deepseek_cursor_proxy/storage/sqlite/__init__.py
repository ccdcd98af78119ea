"""The SQLite engine: transactions that last or do nothing, and all SQL of the store.

    database, schema, connection    connections, transactions, tables and migrations
    file_check                      a file that is not ours, damaged, moved or replaced
    read_only                       a connection for commands that look at the file
    rows                            the rows of every kind, as `storage.entries` wants them; pruning
    usage_rows                      the ledger: rows, sums of days, and how they are read

Other folders import database and schema (`sessions/`), read_only and usage_rows (`usage/`, `admin/`, `cli/`).
"""
