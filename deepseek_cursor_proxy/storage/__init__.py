"""The store: one SQLite file with reasonings, responses, tool orders, pictures in words, usage, and what was learned.

    reasonings, responses, token_ratios    the stores: each a `Table` that declares what is kept, and how long
    picture_descriptions, reasoning_forms  two small ones
    answers                                whole answers, for the response cache
    table, write_behind, pruner            the rows of one kind, writes that wait, and when old rows are deleted
    store, faults, store_size              a file that cannot be used, how the proxy goes on, how much the file holds
    sqlite/                                the engine: connections, transactions, migrations, SQL
    event_log, installation_secret         packed streams, and the secret.key beside the file; no SQL
    private_files, steady_clock            files that only their owner reads, and the clock by which rows are too old

Other folders import the stores, the last four and, for tables of their own (`reasoning/chats/store`, `usage/ledger`,
`sessions/store`), table, store and the engine.
"""
