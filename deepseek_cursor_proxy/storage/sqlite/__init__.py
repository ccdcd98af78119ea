"""The SQLite engine: transactions that last or do nothing.

database, schema, connection                 connections, transactions, tables and migrations
file_check                                   a file that is not ours, damaged, moved or replaced
read_only                                    a connection for commands that look at the file
group_commit                                 writes that share a commit
reasoning_rows, response_rows, usage_rows    the SQL of these tables
"""
