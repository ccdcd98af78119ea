"""A client for Redis and Valkey, one server or a cluster, by RESP2.

    protocol     commands as bytes, replies from bytes; RedisUnavailable, ReplyError
    address      RedisAddress: the URL of a server or of several
    connection   Connection, and the Dialer that opens one: TCP, TLS, AUTH, SELECT
    cluster      which server a command goes to: the only one, or by hash slot; redirections
    client       RedisClient: routes commands, keeps idle connections, and knows whether the server can be used now

Other folders import client, address and, for the types, protocol. Nothing here knows what the keys mean.
"""
