"""What several proxies share on Redis or Valkey.

connection, client    a client for Redis and Valkey
state                 SharedState: the connection, what is sealed, the backlog; SharedReasonings
                      (other features have a `redis_store` of their own)
scripts               the Lua scripts
doctor                the check of `doctor`
"""

CLEARED = ("backlog",)
START_CHECKS = (("store", "features.redis.connection:check"),)
DOCTOR_CHECKS = (("store", "engine", "features.redis.doctor:check"),)
