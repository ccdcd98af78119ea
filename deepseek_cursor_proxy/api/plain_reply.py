"""A JSON reply in one piece that may be long in coming: blanks, which JSON allows, keep the connection alive meanwhile.

Tunnels cut off a reply that stays silent, and DeepSeek may queue a call for ten minutes. The first blank is sent with
the status of a success, so that a failure behind it can only be told by the value itself, or by breaking off: a reply
that breaks off is asked for again, a wrong one is believed.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from time import monotonic
from typing import TYPE_CHECKING, Any

from deepseek_cursor_proxy.conversation import Batch, Batches, Delta
from deepseek_cursor_proxy.errors import ClientGone
from deepseek_cursor_proxy.http1.messages import HttpReply
from deepseek_cursor_proxy.json_codec import encode_json

if TYPE_CHECKING:
    from deepseek_cursor_proxy.exchange.choices import ChoicesExchange
    from deepseek_cursor_proxy.exchange.exchange import Exchange

# None for every blank that is due, then the value.
Steps = Generator[dict[str, Any] | None, None, None]


def signs_of_life(batches: Batches, take: Callable[[Batch], object], seconds: float) -> Iterator[None]:
    """Take every batch of an answer; None as often as its client has waited for that long."""
    due = monotonic() + seconds
    with closing(batches):
        for batch in batches:
            take(batch)
            # An answer that has ended is told within moments, perhaps as a failure, which then needs the status.
            is_over = any(isinstance(item, Delta) and item.finish_reason is not None for item in batch)
            if not is_over and monotonic() >= due:
                due = monotonic() + seconds
                yield None


def reply(steps: Steps, exchange: "Exchange | ChoicesExchange", told: Callable[[Exception], object]) -> HttpReply:
    """The reply, once it is known what it begins with; `told` hears of a failure that comes too late for the client."""
    try:
        value = next(steps)
    except BaseException:
        exchange.close()
        raise
    if value is None:
        return HttpReply(200, _Late(steps, exchange, told), (("Content-Type", "application/json"),))
    steps.close()
    exchange.close()
    return HttpReply.json(value)


class _Late:
    """The body of a reply that keeps its client waiting."""

    # It waits by itself.
    wait_handle = None
    is_over = False

    def __init__(
        self, steps: Steps, exchange: "Exchange | ChoicesExchange", told: Callable[[Exception], object]
    ) -> None:
        self._steps = steps
        self._exchange = exchange
        self._told = told

    def __iter__(self) -> Iterator[bytes]:
        yield b" "
        try:
            for value in self._steps:
                yield b" " if value is None else encode_json(value)
        except ClientGone:
            raise
        except Exception as error:
            self._told(error)
            raise ClientGone from None

    def close(self) -> None:
        self._steps.close()
        self._exchange.close()
