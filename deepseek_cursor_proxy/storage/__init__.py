"""The store: one SQLite file with reasonings, learned values and the tables of features.

    reasonings              the largest table
    learned                 reasoning forms of upstreams, namespaces of named keys
    table                   Table: the base of the large ones; what is kept, and pruning
    write_behind            writes that share a commit, and entries that wait for the file
    database, schema        connections and transactions, the file opened and opened again; the CREATE statements
    faults                  what may be wrong with the file, and the guard that keeps it away from answers
    private_files           files that only their owner reads; the secret beside the store

No answer ever fails or waits because of the file. A lookup that cannot be made finds nothing; a write that cannot be
made waits in memory, within bounds, is found there, and is made when the file can be used.

Every table is one class with its SQL in it.
"""
