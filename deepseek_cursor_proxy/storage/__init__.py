"""The store: one SQLite file with reasonings, responses, usage and learned values.

    reasonings, responses            the two large stores, each a policy over its table
    answers                          answers of the response cache
    learned                          reasoning forms of upstreams, namespaces of named keys
    limits                           what keys and groups have used of their limits: the contract of an engine
    table, entries                   Table; Kind, the values of rows, and the contract of an engine
    write_behind                     writes that share a commit, and entries that wait for the file
    store, faults                    Store: opens, reopens and closes the file; the faults that it may have
    sqlite/                          the engine: connections, transactions, migrations, and all SQL
    resp/                            a client for Redis and Valkey
    shared/                          what several proxies share on Redis or Valkey, and what waits for it
    steady_clock                     the clock by which rows are too old
    private_files                    files that only their owner reads; the secret beside the store

A Table is the policy of one kind of rows, its Kind their description, its Rows the engine's side. The Store is the
lifecycle of the file, the Database its connections.

Other folders import the stores, the last two and, for a table of its own (`usage/ledger`), table and entries.
`sessions/` has a file of its own on the same engine.
"""
