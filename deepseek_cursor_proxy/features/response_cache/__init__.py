"""The response cache: a repeated question is answered without a call.

feature    the cache of a running proxy; in one exchange: find, store
store      the kept answers, a table of the store's file
"""

STORED = ("features.response_cache.store:stored",)
CLEARED = ("cached_answers",)
