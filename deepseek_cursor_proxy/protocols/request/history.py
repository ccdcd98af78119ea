"""The messages of a chat-completions body as canonical ones, from where they grew.

A chat that comes back brings the very objects it brought before (see growing_json); what was made of them is made once,
and is the very same afterwards, so that others know it again as well.
"""

from typing import Any, NamedTuple

from deepseek_cursor_proxy.conversation import Message
from deepseek_cursor_proxy.memo import Beginnings
from deepseek_cursor_proxy.protocols.request.fields import memory
from deepseek_cursor_proxy.protocols.request.messages import MessageReader, read_plain
from deepseek_cursor_proxy.protocols.request.responses_items import History

# Of messages that are remembered: some ten chats of 200 tool turns.
_MOST_BYTES_KNOWN = 16 * 1024 * 1024


class _Read(NamedTuple):
    """What was made of some messages, and the reader as it was behind the last of them."""

    messages: tuple[Message, ...]
    reader: MessageReader


_known: Beginnings[Any, _Read] = Beginnings(_MOST_BYTES_KNOWN, memory)


def read(messages: list[Any]) -> History:
    """The history in a list of messages."""
    count, known = _known.longest(messages)
    found, reader = (list(known.messages), known.reader.copy()) if known is not None else ([], MessageReader())
    for index, message in enumerate(messages[count:], count):
        plain = read_plain(message)
        if plain is not None:
            found.append(plain)
        else:
            found += reader.read(message, f"messages[{index}]")
    history = tuple(found)
    _known.keep(tuple(messages), _Read(history, reader))
    return History(history, dropped=tuple(reader.dropped))
