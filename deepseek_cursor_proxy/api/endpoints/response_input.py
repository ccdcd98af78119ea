"""The input items of a request for a response: those it sends, inherits, and refers to by their ids."""

from deepseek_cursor_proxy.errors import BadRequest, NotFound, TooLarge
from deepseek_cursor_proxy.json_codec import encode_json
from deepseek_cursor_proxy.protocols.request.field_checks import Json
from deepseek_cursor_proxy.protocols.responses import envelope
from deepseek_cursor_proxy.protocols.responses.envelope import ResponseOptions
from deepseek_cursor_proxy.redaction import safe_text
from deepseek_cursor_proxy.storage.responses import ResponseStore


class ResponseInput:
    """Reads what a request inherits or refers to, at most `max_bytes` of each, from the store. Used by one thread."""

    def __init__(self, store: ResponseStore, namespace: bytes, max_bytes: int) -> None:
        self._store = store
        self._namespace = namespace
        self._max_bytes = max_bytes

    def inherited_items(self, options: ResponseOptions) -> list[Json]:
        """The input and output of the previous response."""
        if options.previous is None:
            return []
        found = self._store.get(self._namespace, options.previous, with_events=False)
        if found is None:
            raise NotFound(
                f"Previous response {safe_text(options.previous, 100)} is not known here: it was never stored, has "
                "been deleted, is too old, or belongs to another key. Send the whole history as input instead.",
                code="previous_response_not_found",
                param="previous_response_id",
            )
        if found.body["status"] in ("queued", "in_progress"):
            raise BadRequest(
                "The previous response is still being made. Wait until it is finished.", param="previous_response_id"
            )
        if found.json_bytes > self._max_bytes:
            raise TooLarge(
                f"The history that this request goes on from is larger than {self._max_bytes} bytes. Start a new chat."
            )
        return [*found.input, *found.body["output"]]

    def own_items(self, options: ResponseOptions, inherited: list[Json]) -> list[Json]:
        """The items that the request sends, with those it only refers to."""
        known = {item.get("id"): item for item in inherited}
        outputs: dict[str, list[Json]] = {}
        own: list[Json] = []
        budget = _Budget(self._max_bytes)
        for index, item in enumerate(options.items):
            if item.get("type") == "item_reference" and item.get("id") in known:
                own.append(budget.take(known[item["id"]]))
                continue
            if item.get("type") == "item_reference" and (found := self._foreign_item(item, options, outputs)):
                own.append(budget.take(found))
                continue
            reference = envelope.reference(item, f"input[{index}]")
            if reference is None:
                own.append(item)
                continue
            output = self._output(reference.response_id, outputs)
            if reference.index >= len(output):
                raise envelope.unknown_item(item)
            own.append(budget.take(output[reference.index]))
        return own

    def _foreign_item(self, item: Json, options: ResponseOptions, outputs: dict[str, list[Json]]) -> Json | None:
        """The item with an id of DeepSeek's own, as searches have; its response is one of those that others are of."""
        item_id = item.get("id")
        if not item_id or envelope.response_of(item_id) is not None:
            return None
        for response_id in dict.fromkeys(envelope.response_of(each.get("id")) for each in options.items):
            output = [] if response_id is None else self._output(response_id, outputs)
            for each in output:
                if each.get("id") == item_id:
                    return each
        return None

    def _output(self, response_id: str, outputs: dict[str, list[Json]]) -> list[Json]:
        """The items of a stored response, from `outputs` if they are there; none if it is not known."""
        if response_id not in outputs:
            found = self._store.get(self._namespace, response_id, with_events=False)
            outputs[response_id] = [] if found is None else found.body["output"]
        return outputs[response_id]


class _Budget:
    """The bytes that a request may refer to: forty bytes name an item of megabytes, and may be repeated many times."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = self._left = max_bytes
        self._sizes: dict[int, int] = {}

    def take(self, item: Json) -> Json:
        """The item, if the budget allows; TooLarge otherwise. The caller keeps it alive."""
        if id(item) not in self._sizes:
            self._sizes[id(item)] = len(encode_json(item))
        self._left -= self._sizes[id(item)]
        if self._left < 0:
            raise TooLarge(
                f"The items that this request refers to are larger than {self._max_bytes} bytes together. Refer to "
                "each once, or go on with previous_response_id."
            )
        return item
