"""What several proxies share on Redis or Valkey.

address, protocol, connection, client, cluster    a client for Redis and Valkey
state                                             SharedState: the connection, what is sealed, the backlog
reasonings, responses, limits                     what is shared
scripts                                           the Lua scripts
doctor                                            the check of `doctor`
"""
