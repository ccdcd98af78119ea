"""Log probabilities of an answer's tokens, from DeepSeek's chunks to the shape of the Responses API.

The bytes of a token may be null in chat completions; here they are always a list. A malformed entry is left out,
because clients compute with it.
"""

from typing import Any

from deepseek_cursor_proxy.conversation import Delta
from deepseek_cursor_proxy.json_codec import as_list, as_object
from deepseek_cursor_proxy.protocols.request.field_checks import Json

INCLUDE = "message.output_text.logprobs"


def are_requested(body: Json) -> bool:
    """Whether a request for a response asks for them, by any of three fields."""
    include = body.get("include")
    return (
        (isinstance(include, list) and INCLUDE in include)
        or body.get("logprobs") is True
        or bool(body.get("top_logprobs"))
    )


def read(delta: Delta) -> list[dict[str, Any]]:
    """Those of the text of a delta; none for a run, whose chunks differ in their text alone."""
    if delta.run is not None or delta.chunk is None:
        return []
    choice = as_object(next(iter(as_list(delta.chunk.get("choices"))), None))
    read = [_entry(value) for value in as_list(as_object(choice.get("logprobs")).get("content"))]
    return [entry for entry in read if entry is not None]


def _entry(value: object) -> dict[str, Any] | None:
    token = _token(value)
    if token is None or not isinstance(value, dict):
        return None
    others = [_token(each) for each in as_list(value.get("top_logprobs"))]
    return {**token, "top_logprobs": [each for each in others if each is not None]}


def _token(value: object) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    token, logprob, data = value.get("token"), value.get("logprob"), value.get("bytes")
    if not isinstance(token, str) or isinstance(logprob, bool) or not isinstance(logprob, (int, float)):
        return None
    is_list = isinstance(data, list) and all(isinstance(each, int) for each in data)
    return {"token": token, "logprob": logprob, "bytes": data if is_list else list(token.encode("utf-8", "replace"))}
