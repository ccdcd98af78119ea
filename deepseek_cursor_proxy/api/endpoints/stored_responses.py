"""/responses/{id}: stored responses are retrieved, streamed again, listed, cancelled and deleted.

To the caller of another key a response does not exist.
"""

from collections.abc import Generator, Iterator

from deepseek_cursor_proxy.api.endpoint import Endpoint
from deepseek_cursor_proxy.api.reply import internal_error
from deepseek_cursor_proxy.errors import BadRequest, ClientGone, NotFound
from deepseek_cursor_proxy.exchange.background_jobs import JobEvents
from deepseek_cursor_proxy.http1.lull import BLOCKING, Lull
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest
from deepseek_cursor_proxy.protocols.responses import stored_items
from deepseek_cursor_proxy.protocols.responses.writer import failure_event
from deepseek_cursor_proxy.redaction import safe_text
from deepseek_cursor_proxy.storage import event_log
from deepseek_cursor_proxy.storage.responses import StoredResponse

# A cancelled call ends within moments; the reply to the cancellation shows that, or that it is on its way.
_CANCEL_SECONDS = 5.0


class StoredEndpoint(Endpoint):
    def retrieve(self, request: HttpRequest, response_id: str) -> HttpReply:
        namespace = self.namespace(request)
        number = stored_items.starting_after(request.query)
        # In this order: a job that ends meanwhile is in the store by then, and one that was deleted is not.
        job = self._services.jobs.find(namespace, response_id) if number is not None else None
        found = self._find(namespace, response_id, with_events=number is not None and job is None)
        if number is None:
            return HttpReply.json(found.body)
        if job is not None:
            events = job.follow(request.peer, self._services.config.heartbeat_interval)
            return HttpReply.events(EventsAfter(events, number))
        if found.events is None and found.body["background"] and found.body["status"] == "failed":
            return HttpReply.events(stored_items.last_events(found.body, number))
        if found.events is None:
            raise BadRequest("Only a response that was made in the background can be streamed again.", param="stream")
        return HttpReply.events(EventsAfter(event_log.unpack(found.events), number))

    def input_items(self, request: HttpRequest, response_id: str) -> HttpReply:
        found = self._find(self.namespace(request), response_id)
        return HttpReply.json(stored_items.page(found.input, request.query))

    def delete(self, request: HttpRequest, response_id: str) -> HttpReply:
        namespace = self.namespace(request)
        job = self._services.jobs.find(namespace, response_id)
        if not self._services.responses.delete(namespace, response_id):
            raise _unknown(response_id)
        if job is not None:
            # Its response could not be retrieved.
            self._services.jobs.cancel(job)
        return HttpReply.json({"id": response_id, "object": "response.deleted", "deleted": True})

    def cancel(self, request: HttpRequest, response_id: str) -> HttpReply:
        namespace = self.namespace(request)
        if not self._find(namespace, response_id).body["background"]:
            raise BadRequest("Only a response that is made in the background can be cancelled.", param="response_id")
        job = self._services.jobs.find(namespace, response_id)
        if job is not None:
            self._services.jobs.cancel(job)
            job.wait(_CANCEL_SECONDS)
        return HttpReply.json(self._find(namespace, response_id).body)

    def _find(self, namespace: bytes, response_id: str, *, with_events: bool = False) -> StoredResponse:
        found = self._services.responses.get(namespace, response_id, with_events=with_events)
        if found is None:
            raise _unknown(response_id)
        return found


class EventsAfter:
    """The events of a running or finished job after those that a client has; `number` is its last, -1 for none."""

    is_finished = False

    def __init__(self, events: JobEvents | Generator[bytes, None, None], number: int = -1) -> None:
        self._events = events
        self._number = number

    def __iter__(self) -> Iterator[bytes | Lull]:
        # It waits for another thread.
        yield BLOCKING
        try:
            for piece in self._events:
                if rest := stored_items.events_after(piece, self._number):
                    yield rest
        except ClientGone:
            raise
        except Exception as error:
            yield failure_event(internal_error(error))

    def close(self) -> None:
        self._events.close()


def _unknown(response_id: str) -> NotFound:
    return NotFound(
        f"Response {safe_text(response_id, 100)} is not known here: it was never stored, has been deleted, is too old, "
        "or belongs to another key.",
        code="response_not_found",
    )
