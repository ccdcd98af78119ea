"""Named keys: who uses the proxy, and how much each may use.

feature    a request of a named key: its model, and the estimate that is reserved
limits     Limiter: what keys and groups may use, reserved before a call and settled after it
store      what is spent and reserved, tables of the store's file; `redis_store` has the same on Redis
"""

ADMIN_ROUTES = (("/api/keys", "features.keys.dashboard:keys"),)
