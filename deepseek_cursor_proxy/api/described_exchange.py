"""Opens an exchange whose pictures have to be put into words first.

An exchange opens before the first byte of a reply, so that a refusal is an HTTP error. If the descriptions take longer
than a client waits in silence, the reply begins without it: a LateExchange has heartbeats until they are there, then
opens the exchange, and a refusal is an error inside the reply.
"""

from collections.abc import Callable

from deepseek_cursor_proxy.api.reply import OpenExchange
from deepseek_cursor_proxy.conversation import Batches, Heartbeat
from deepseek_cursor_proxy.errors import ClientGone
from deepseek_cursor_proxy.exchange.call_context import CallContext, GenerationRequest
from deepseek_cursor_proxy.exchange.pictures.picture_texts import PictureTexts, find_texts
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.http1.lull import BLOCKING

Open = Callable[[GenerationRequest], OpenExchange]


def open_described(
    context: CallContext, generation: GenerationRequest, services: Services, open_exchange: Open
) -> OpenExchange:
    """The exchange, open or late, of the request with its pictures in words; as it is if it has none to describe."""
    texts = find_texts(context, generation, services)
    if texts is None:
        return open_exchange(generation)
    late = LateExchange(texts, open_exchange, lambda error: _refuse(context, error), services.config.heartbeat_interval)
    return late.open_in_time() or late


def _refuse(context: CallContext, error: BaseException) -> None:
    if context.report is not None:
        context.report.refuse("pictures", error)


class LateExchange:
    """Used by one thread at a time; must be closed. `refuse` reports a request that ends before it is open, once."""

    def __init__(
        self,
        texts: PictureTexts,
        open_exchange: Open,
        refuse: Callable[[BaseException], None],
        heartbeat_seconds: float,
    ) -> None:
        self._texts = texts
        self._open = open_exchange
        self._refuse = refuse
        self._heartbeat_seconds = heartbeat_seconds
        self._exchange: OpenExchange | None = None
        self._is_closed = False

    def open_in_time(self) -> OpenExchange | None:
        """The exchange if the texts are there before the first heartbeat is due; what it raises is not reported."""
        try:
            if not self._texts.wait(self._heartbeat_seconds):
                return None
            exchange = self._open(self._texts.generation())
        except BaseException:
            self._texts.close()
            raise
        self._texts.close()
        return exchange

    @property
    def is_closed(self) -> bool:
        return self._is_closed or (self._exchange is not None and self._exchange.is_closed)

    @property
    def cache_state(self) -> str:
        return self._exchange.cache_state if self._exchange is not None else ""

    def notice(self, choice: int) -> str:
        """Known once the answer has begun."""
        assert self._exchange is not None
        return self._exchange.notice(choice)

    def deltas(self, *, with_lulls: bool) -> Batches:
        try:
            is_ready = False
            while not is_ready:
                yield [Heartbeat()]
                yield BLOCKING
                is_ready = self._texts.wait(self._heartbeat_seconds)
            self._exchange = self._open(self._texts.generation())
            self._texts.close()
            yield from self._exchange.deltas(with_lulls=with_lulls)
        except Exception as error:
            self.fail(error)
            raise
        finally:
            self.close()

    def fail(self, error: Exception) -> None:
        if self._exchange is not None:
            self._exchange.fail(error)
        else:
            self._refuse(error)

    def close(self) -> None:
        """Idempotent."""
        self._is_closed = True
        self._texts.close()
        if self._exchange is not None:
            self._exchange.close()
        else:
            self._refuse(ClientGone())
