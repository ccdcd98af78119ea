"""The store: one SQLite file with reasonings, responses, tool orders, pictures in words, usage, and what was learned.

    reasonings, responses, token_ratios    the stores: each a `Table` that declares what is kept, and how long
    picture_descriptions, reasoning_forms  two small ones
    cached_answers                         whole answers, for the response cache
    reasoning_rows, response_rows          the rows of the first two, and their SQL
    usage_rows                             the rows of `usage/ledger`, and their SQL
    engine/                                the SQLite file: tables, transactions, migrations, faults, writes that wait
    event_log, installation_secret         packed streams, and the secret.key beside the file; no SQL
    private_files, steady_clock            files that only their owner reads, and the clock by which rows are too old

Other folders import the stores, the last four and, for tables in `reasoning/chats/store` and `usage/ledger`, the
engine. Another engine takes over all tables at once. It replaces `database`, `schema`, `sqlite_connection`,
`file_check`, the statements of `table` and `faults.fault_of` in `engine/`, every other statement (`reasoning_rows`,
`response_rows`, `cached_answers`, `usage_rows`, `reasoning/chats/store`), and `sqlite3` in annotations and in
`FaultGuard`.
`Database` has to offer: `transaction` (durable or nothing), `reader` (never waits for a writer), `open`, `reopen`,
`request_reopen`, `on_reopen` (writes that waited), `shrink`, `close`, `path`; and Unusable.
"""
