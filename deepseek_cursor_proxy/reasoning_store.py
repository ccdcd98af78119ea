"""The public name of the reasoning store, which is in storage.reasonings."""

from deepseek_cursor_proxy.storage.reasonings import ReasoningStore

__all__ = ["ReasoningStore"]
