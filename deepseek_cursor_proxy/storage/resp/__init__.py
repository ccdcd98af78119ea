"""A client for servers that speak RESP: Redis and Valkey, one server, a cluster, or a master that Sentinels watch.

    protocol     commands as bytes, replies from bytes (RESP2 and RESP3); EngineDown, ReplyError
    address      EngineAddress: the URL of a server or of several
    connection   Connection, and the Dialer that opens one: TCP, TLS, HELLO or AUTH, SELECT
    topology     which server a command goes to: the only one, or the master that Sentinels name
    cluster      the same for a cluster: hash slots, the map of slots to nodes, redirections
    client       Engine: routes commands, keeps idle connections, and knows whether the server can be used now

Other folders import client, address and, for the types, protocol. Nothing here knows what the keys mean.
"""
