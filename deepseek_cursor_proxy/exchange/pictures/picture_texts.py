"""The pictures of one request whose model sees none: look their descriptions up, and have the missing ones made.

Descriptions never fail a request: a picture without one, whatever the reason, is named, and tried again with the next
request. While they are made the thread of the request waits, a few seconds at a time, so that its client can get a
heartbeat. `picture_describer` makes the calls, `deepseek/images` knows where the text goes.
"""

import time
from collections import deque
from collections.abc import Callable

from deepseek_cursor_proxy.deepseek.images import PicturedHistory
from deepseek_cursor_proxy.deepseek.model_names import can_see_images, picture_model
from deepseek_cursor_proxy.errors import ProxyError, UpstreamTimeout
from deepseek_cursor_proxy.exchange.call_context import CallContext, GenerationRequest
from deepseek_cursor_proxy.exchange.pictures.picture_describer import PictureDescriber
from deepseek_cursor_proxy.exchange.pictures.shared_calls import SharedCall
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.net.deadline import Deadline
from deepseek_cursor_proxy.net.wait import wait_readable
from deepseek_cursor_proxy.net.wakeup import Wakeup

# An old chat may have hundreds, and each is paid for: the newest are described, the rest with the next requests.
_MOST_NEW = 32
_MOST_AT_ONCE = 8
# A description takes some seconds; after this long the answer is worth more.
_MAX_SECONDS = 90.0


def find_texts(context: CallContext, generation: GenerationRequest, services: Services) -> "PictureTexts | None":
    """The texts for the pictures of a request; None if these stay as they are."""
    request, model = generation.request, picture_model(services.config)
    if model is None or can_see_images(request.model):
        return None
    if all(isinstance(message.content, str) for message in request.messages):
        return None
    history = PicturedHistory(request.messages, services.memory)
    return PictureTexts(generation, history, PictureDescriber(context, services, model)) if history.pictures else None


class PictureTexts:
    """The descriptions that a request needs. Used by the thread that serves the request, which must close it."""

    def __init__(self, generation: GenerationRequest, history: PicturedHistory, describer: PictureDescriber) -> None:
        self._generation = generation
        self._history = history
        self._describer = describer
        self._pictures = history.pictures
        store = describer.services.picture_descriptions
        self._texts = store.find(describer.context.namespace, [*self._pictures])
        self._queue: deque[bytes] = deque()
        if describer.services.config.pictures == "describe":
            missing = [digest for digest in self._pictures if digest not in self._texts]
            self._queue.extend(reversed(missing[-_MOST_NEW:]))
        self._calls: dict[bytes, SharedCall] = {}
        self._deadline = Deadline.after(_MAX_SECONDS)
        # Notified when a call is over; None when there is nothing to wait for.
        self._wakeup = _open_wakeup() if self._queue else None

    def wait(self, seconds: float) -> bool:
        """Whether every call is over, or given up, within that time; raises as any wait for a client does."""
        deadline = Deadline.after(seconds)
        while self._wakeup is not None:
            self._take_results()
            self._begin_calls(self._wakeup)
            if not self._calls:
                break
            if self._deadline.is_over:
                self._leave(_timeout)
                break
            if deadline.is_over:
                return False
            until = min(deadline, self._deadline)
            if wait_readable(self._wakeup, until - time.monotonic(), self._describer.context.peer):
                self._wakeup.clear()
        return True

    def generation(self) -> GenerationRequest:
        """The request with the descriptions that there are; the client's own messages identify its turns."""
        generation = self._generation
        if not self._texts:
            return generation
        messages = generation.request.messages
        request = generation.request._replace(messages=self._history.place(self._texts))
        return generation._replace(request=request, client_messages=messages)

    def close(self) -> None:
        """Idempotent. Calls that no other request waits for end."""
        self._leave()
        if self._wakeup is not None:
            self._wakeup.close()
            self._wakeup = None

    def _take_results(self) -> None:
        for digest, call in [*self._calls.items()]:
            if call.is_over:
                del self._calls[digest]
                if call.result is not None:
                    self._texts[digest] = call.result

    def _begin_calls(self, wakeup: Wakeup) -> None:
        while self._queue and len(self._calls) < _MOST_AT_ONCE:
            digest = self._queue.popleft()
            call = self._describer.begin(digest, self._pictures[digest], wakeup)
            if call is not None:
                self._calls[digest] = call

    def _leave(self, reason: Callable[[], ProxyError] | None = None) -> None:
        self._queue.clear()
        if self._wakeup is not None:
            for call in self._calls.values():
                self._describer.services.shared_calls.leave(call, self._wakeup, reason)
        self._calls.clear()


def _open_wakeup() -> Wakeup | None:
    try:
        return Wakeup()
    except OSError:
        # No descriptors are left: the pictures are named.
        return None


def _timeout() -> UpstreamTimeout:
    return UpstreamTimeout(f"There was no description within {_MAX_SECONDS:.0f} seconds.")
