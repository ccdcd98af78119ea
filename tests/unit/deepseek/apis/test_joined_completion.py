import json
import unittest
from typing import Any

from deepseek_cursor_proxy.conversation import Batches, Delta, Heartbeat
from deepseek_cursor_proxy.deepseek.apis.chat_stream import StreamReader, join_stream


def joined(*choices: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The completion that chunks with these choices become."""
    chunks = [{"id": "1", "object": "chat.completion.chunk", **fields, "choices": [each]} for each in choices]
    chunks.append({"id": "1", "choices": [], "usage": {"total_tokens": 3}})
    data = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in chunks)

    def batches() -> Batches:
        yield [Heartbeat()]
        yield StreamReader().read(data).batch

    *waiting, last = join_stream(batches(), has_server_tools=False)
    assert waiting == [[Heartbeat()], [Heartbeat()]]
    assert isinstance(last, list)
    (delta,) = last
    assert isinstance(delta, Delta)
    assert delta.chunk is not None
    return dict(delta.chunk)


def piece(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish_reason}


class TestJoinedCompletions(unittest.TestCase):
    def test_everything_is_added_up(self) -> None:
        call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}
        more = {"index": 0, "function": {"arguments": "{}"}}
        found = joined(
            piece(role="assistant", reasoning_content="", content=None),
            *(piece(reasoning_content=each) for each in ("Th", "in", "k")),
            *(piece(content=each) for each in ("a", "b", "c", "d")),
            piece(tool_calls=[call]),
            piece(tool_calls=[more]),
            piece("tool_calls"),
            system_fingerprint="fp",
        )
        function = {"name": "f", "arguments": "{}"}
        message = {
            "role": "assistant",
            "content": "abcd",
            "reasoning_content": "Think",
            "tool_calls": [{"index": 0, "id": "c", "type": "function", "function": function}],
        }
        self.assertEqual(
            {
                "id": "1",
                "object": "chat.completion",
                "system_fingerprint": "fp",
                "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
                "usage": {"total_tokens": 3},
            },
            found,
        )

    def test_an_answer_without_thinking_has_no_reasoning(self) -> None:
        message = joined(piece(content="a"), piece("stop"))["choices"][0]["message"]
        self.assertEqual({"role": "assistant", "content": "a"}, message)

    def test_log_probabilities_are_joined(self) -> None:
        choices = [
            {**piece(content=each), "logprobs": {"content": [{"token": each}], "reasoning_content": None}}
            for each in ("a", "b")
        ]
        found = joined(*choices, {**piece("stop"), "logprobs": None})["choices"][0]["logprobs"]
        self.assertEqual({"content": [{"token": "a"}, {"token": "b"}], "reasoning_content": None}, found)

    def test_blocks_stay_blocks_with_the_text_between_them(self) -> None:
        found, other = {"type": "search_result", "url": "u"}, {"type": "text", "text": "b"}
        message = joined(piece(content="a"), piece(content=[found, other]), piece(content="c"), piece("stop"))
        texts = [{"type": "text", "text": each} for each in ("a", "c")]
        self.assertEqual([texts[0], found, other, texts[1]], message["choices"][0]["message"]["content"])
