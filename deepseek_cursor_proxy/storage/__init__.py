"""The store: one SQLite file with reasonings, responses, tool orders, pictures in words, usage, and what was learned.

    reasonings, responses, answers         the stores, each a policy over its table; answers: for the response cache
    picture_descriptions, token_ratios, reasoning_forms    three small ones
    table, entries                         Table: what a kind of rows holds and how long; the seam to the engine
    write_behind                           writes that share a commit, and those that wait for the file
    store, faults                          a file that cannot be used, and how the proxy goes on
    sqlite/                                the engine: connections, transactions, migrations, and all SQL
    event_log, installation_secret         packed streams, and the secret.key beside the file
    private_files, steady_clock            files that only their owner reads, and the clock by which rows are too old

Other folders import the stores, the last four and, for tables of their own (`reasoning/chats/store`, `usage/ledger`),
table and entries. `sessions/` has a file of its own on the same engine.
"""
