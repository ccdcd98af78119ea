"""The store: one SQLite file with reasonings, responses, tool orders, pictures in words, usage, and what was learned.

    reasonings, responses            the two large stores, each a policy over its table
    answers                          answers that are used again: those of the response cache, descriptions of pictures
    learned                          token ratios of models, reasoning forms of upstreams
    table, entries                   Table: what a kind of rows holds and how long; the seam to the engine
    write_behind                     writes that share a commit, and those that wait for the file
    store, faults                    a file that cannot be used, and how the proxy goes on
    sqlite/                          the engine: connections, transactions, migrations, and all SQL
    steady_clock                     the clock by which rows are too old
    private_files                    files that only their owner reads; the secret beside the store

Other folders import the stores, the last two and, for tables of their own (`reasoning/chats/store`, `usage/ledger`),
table and entries. `sessions/` has a file of its own on the same engine.
"""
