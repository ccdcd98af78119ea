"""The response cache: a repeated question is answered without a call.

cache    one exchange with the cache: find, store
store    the kept answers, a table of the store's file
"""
