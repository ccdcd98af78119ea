"""Named keys: who uses the proxy, and how much each may use.

limits       Limiter: what keys and groups may use, reserved before a call and settled after it
admission    one request in the limits
store        what is spent and reserved, tables of the store's file
"""

ADMIN_ROUTES = (("/api/keys", "features.keys.admin:keys"),)
