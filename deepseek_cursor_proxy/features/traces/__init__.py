"""Traces: `trace` writes a private JSON file per request, and explains one."""
