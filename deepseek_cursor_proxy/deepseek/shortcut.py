"""A way past everything for chunks that differ from the ones before in nothing but their text.

While a model thinks or speaks, nearly all that arrives is such a chunk, alone, many times a second. The long way reads
it, adds it up, shows it and writes it; all that it changes there is what was said so far. So the long way leaves a
trail: the reader tells by which stencil it read all of a piece, and whoever wrote that for the client leaves what it
wrote around the text. As long as what comes fits, it is added up and written here; anything else takes the long way.
Both ways say the same, byte for byte.
"""

from deepseek_cursor_proxy.conversation import Reply
from deepseek_cursor_proxy.deepseek.repeated_chunks import Stencil, spliced_run


class Shortcut:
    """Past what was read by a stencil, until something else comes. Used by the one thread that runs the exchange."""

    def __init__(self, stencil: Stencil, reply: Reply) -> None:
        # Nobody has written it yet.
        stencil.around = None
        self._stencil = stencil
        self._reply = reply

    @property
    def is_open(self) -> bool:
        return self._stencil.around is not None

    def take(self, piece: bytes) -> bytes | None:
        """The piece as the client gets it; None when it has to go the long way, and then nothing was taken."""
        around = self._stencil.around
        delta, end = self._stencil.read(piece, 0)
        if around is None or delta is None or delta.run is None or end < len(piece):
            return None
        if not self._reply.has_room(delta):
            return None
        if self._stencil.is_shown and not self._stencil.passes(delta.reasoning or ""):
            # Inside the thinking block, something has to be changed in it.
            return None
        self._reply.add(delta)
        return spliced_run(delta.run, around)
