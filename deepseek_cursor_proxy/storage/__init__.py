"""The store: one SQLite file with reasonings, responses, usage and learned values.

    reasonings, responses   the two large tables
    answers                 answers of the response cache
    learned                 reasoning forms of upstreams, namespaces of named keys
    limits                  what keys and groups have used of their limits
    table                   Table: the base of the large ones; what is kept, and pruning
    write_behind            writes that share a commit, and entries that wait for the file
    database, schema        connections and transactions, the file opened and opened again; the CREATE statements
    faults                  what may be wrong with the file, and the guard that keeps it away from answers
    private_files           files that only their owner reads; the secret beside the store
    resp/, shared/          a client for Redis and Valkey; what several proxies share there

No answer ever fails or waits because of the file. A lookup that cannot be made finds nothing; a write that cannot be
made waits in memory, within bounds, is found there, and is made when the file can be used.

Every table is one class with its SQL in it. `usage/ledger` has a table of its own in this file, `sessions/` a file.
"""
