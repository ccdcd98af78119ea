"""The log of requests: those in flight, and the last thousand that ended, without their texts; in memory."""
