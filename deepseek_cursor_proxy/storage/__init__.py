"""The store: one SQLite file with reasonings, stored responses, tool orders and token ratios.

    reasonings, responses, token_ratios    the stores: what is kept, and how long
    reasoning_rows, response_rows          the rows of the first two, and their SQL
    database, schema, sqlite_connection    the engine: connections, transactions, tables and migrations
    faults, file_check, reopener           a file that is locked, full, damaged or gone, and how the proxy goes on
    pending_writes, group_commit, pruner   writes that wait, writes that share a commit, and deletion of old rows
    event_log, installation_secret         packed streams, and the secret.key beside the file; no SQL

Other folders import `reasonings`, `responses`, `token_ratios`, `event_log`, `installation_secret`, and `database`,
`faults` and `pruner` for tables of their own (`chats/store`).

Another engine replaces `database`, `schema` and `faults.fault_of`, and the statements in `reasoning_rows`,
`response_rows`, `token_ratios` and `chats/store`. It has to offer what those rely on: `transaction()`, which commits
durably or not at all; `reader()`, which never waits for a writer; `Unusable` for every fault; `on_reopen` for writes
that had to wait.
"""
