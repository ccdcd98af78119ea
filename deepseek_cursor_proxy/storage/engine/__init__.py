"""The SQLite engine below the stores: transactions that last or do nothing, and a proxy that goes on without its file.

    database, schema, sqlite_connection    connections, transactions, tables and migrations
    faults, file_check, reopener           a file that is locked, full, damaged or gone, and how the proxy goes on
    read_only                              a connection for commands that look at the file
    write_behind, group_commit             writes that wait, and writes that share a commit
    table, pruner                          the rows of one kind, which of them are kept, and when others are deleted

Other folders import database, faults and table, each for tables of its own, and `cli` read_only.
"""
