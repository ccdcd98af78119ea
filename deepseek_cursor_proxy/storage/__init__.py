"""The store: one SQLite file with reasonings, responses, tool orders, pictures in words, usage, and what was learned.

    reasonings, responses, token_ratios    the stores: what is kept, and how long
    picture_descriptions, reasoning_forms  two small ones
    cached_answers                         whole answers, for the response cache
    reasoning_rows, response_rows          the rows of the first two, and their SQL
    usage_rows                             the rows of `usage/ledger`, and their SQL
    engine/                                the SQLite file: transactions, migrations, faults, writes that wait, pruning
    event_log, installation_secret         packed streams, and the secret.key beside the file; no SQL

Other folders import the stores, the last two and, for tables in `reasoning/chats/store` and `usage/ledger`, the engine.
Another engine takes over all tables at once. It replaces `database`, `schema`, `sqlite_connection`, `file_check`,
`table` and `faults.fault_of` in `engine/`, every other statement (`reasoning_rows`, `response_rows`, `cached_answers`,
`usage_rows`, `reasoning/chats/store`), and `sqlite3` in annotations and `FaultGuard`.
`Database` has to offer: `transaction` (durable or nothing), `reader` (never waits for a writer), `open`, `reopen`,
`request_reopen`, `on_reopen` (writes that waited), `shrink`, `close`, `path`; and Unusable.
"""
