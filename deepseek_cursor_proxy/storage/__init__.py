"""The SQLite file: reasonings, stored responses, token ratios; faults, pruning, reopening.

Other folders use `reasonings`, `responses`, `token_ratios`, `installation_secret` and `database`.
"""
