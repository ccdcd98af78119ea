"""What several proxies share on an engine, Redis or Valkey, beside the file that each of them has.

    state        SharedState: acknowledged writes, reads with a deadline, the backlog, the secret's check value
    reasonings   the reasonings of a caller on the engine
    responses    stored responses, and the leases of background jobs
    limits       what named keys and groups have used of their limits
    scripts      what the engine does in one atomic step, in Lua

The file of the instance stays: it is the cache and backlog while the engine cannot be used. Keys on the engine begin
with `dcp:` and have the caller as their hash tag, so that one caller is in one slot of a cluster. All texts are sealed
with the installation secret (`reasoning.sealed`) before they leave the machine.

Imported only if the setting `store` is an engine.
"""
