"""The canonical conversation: pure values that every API is translated to and from.

    messages    in: ChatRequest, with its Messages and ToolCalls
    deltas      out: Delta, what one upstream chunk adds; Heartbeat; a Batch of both
    reply       Reply, which adds the deltas up to a Message

These types know no wire format, no store and no socket. A whole JSON completion is one big Delta. Reasoning is
three-valued everywhere: text, "" (the model has none), None (unknown). All others import them from here.
"""

from deepseek_cursor_proxy.conversation.deltas import (
    Batch,
    Batches,
    CallPiece,
    Delta,
    ForeignReasoning,
    Heartbeat,
    Run,
    RunTemplate,
    ServerDelta,
    ServerPiece,
)
from deepseek_cursor_proxy.conversation.messages import (
    ChatRequest,
    Message,
    Parts,
    ToolCall,
    is_blank,
    pack_items,
    remove_spaces,
    unpack_items,
)
from deepseek_cursor_proxy.conversation.reply import Reply, join_pieces, merge_details

__all__ = [
    "Batch",
    "Batches",
    "CallPiece",
    "ChatRequest",
    "Delta",
    "ForeignReasoning",
    "Heartbeat",
    "Message",
    "Parts",
    "Reply",
    "Run",
    "RunTemplate",
    "ServerDelta",
    "ServerPiece",
    "ToolCall",
    "is_blank",
    "join_pieces",
    "merge_details",
    "pack_items",
    "remove_spaces",
    "unpack_items",
]
