"""Bodies of every shape over real sockets: client says → DeepSeek must see → DeepSeek answers → client must see.

Scenarios 33 to 38 of what Cursor sends: Responses items, mixed tools, ApplyPatch, Anthropic blocks, roles, images.
The fake keeps DeepSeek's contract, so DeepSeek takes every chat that the fake accepts.
"""

import json
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.deepseek import images
from tests.fake_deepseek import Answer, Call
from tests.support.cursor import CursorClient
from tests.support.harness import RunningProxy, SocketTestCase, read_reply, request_bytes
from tests.support.histories import TOOLS
from tests.support.width import width
from tests.unit.deepseek.test_model_resolver import FLASH, PRO

GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: begin_patch hunk+ end_patch"}
APPLY_PATCH = {"type": "custom", "name": "ApplyPatch", "description": "Patches files.", "format": GRAMMAR}
FLAT = {"type": "function", "name": "Shell", "description": "d", "parameters": {"type": "object"}, "strict": False}
BARE = {"name": "Grep", "description": "d", "input_schema": {"type": "object"}}
READ = Call("call_1", "read_file", '{"path":"a"}')
PATCH = '*** Begin Patch\n*** Update File: a.py\n@@\n-x = "\\n"\n+x = "é 思 \U0001f600"\n*** End Patch\n'
PNG = "data:image/png;base64,iVBORw0KGgo" + "A" * 15989


class ShapesTestCase(SocketTestCase):
    def post(self, proxy: RunningProxy, **body: Any) -> tuple[int, Any]:
        reply = self.round_trip(proxy, body)
        return reply.status, reply.value


class ItemsClient(CursorClient):
    """Cursor as it speaks for GPT names: the history as items, the answers still as chat chunks."""

    def body(self, messages: Any) -> dict[str, Any]:
        return {
            "model": "gpt-5.6-sol", "instructions": "Be brief.", "input": messages, "stream": True,
            "stream_options": {"include_usage": True}, "tools": self.tools, "store": False,
            "reasoning": {"effort": "medium", "summary": "auto"}, "metadata": {"cursorConversationId": "chat-1"},
        }  # fmt: skip


class TestResponsesItems(ShapesTestCase):
    def test_a_tool_loop_of_responses_items_keeps_its_reasoning(self) -> None:
        calls = Call("call_1", "Shell", '{"c": 1}'), Call("call_2", "Shell", '{"c": 2}')
        self.fake.answer(
            Answer(reasoning="Both at once.", content="Looking.", calls=calls), Answer("Now I know.", "Done.")
        )
        client = self.enterContext(ItemsClient(self.running.url, tools=[FLAT]))
        client.messages = [{"role": "user", "content": [{"type": "input_text", "text": "go"}]}]
        first = client.post()
        self.assertEqual(2, len(first.calls))
        self.assertIsNotNone(first.usage)
        self.assertEqual({"gpt-5.6-sol"}, {event["model"] for event in first.events})
        client.messages += [
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "opaque"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": first.content}]},
            *(
                {"type": "function_call", "call_id": c.id, "name": c.name, "arguments": c.arguments}
                for c in first.calls
            ),
            *({"type": "function_call_output", "call_id": c.id, "output": "42"} for c in first.calls),
        ]
        self.assertTrue(client.post().is_whole)
        self.assert_upstream_saw("Both at once.")
        self.assertEqual(["system", "user", "assistant", "tool", "tool"], [each["role"] for each in self.sent()])
        self.assertEqual("Looking.", self.sent()[2]["content"])
        self.assertEqual([], self.fake.refused)


class TestMixedTools(ShapesTestCase):
    TOOLS = (*TOOLS, FLAT, BARE, APPLY_PATCH, {"type": "web_search"})

    def test_a_custom_tool_gets_free_text_and_its_turn_is_found_again(self) -> None:
        for stream in (True, False):
            for piece in (1, 7, 1000):
                for display in (True, False):
                    with self.subTest(stream=stream, piece=piece, display=display):
                        self._patch_loop(stream, piece, display)

    def _patch_loop(self, stream: bool, piece: int, display: bool) -> None:
        # A short id proves nothing by itself: the turn is found because it is the same, byte for byte.
        call = Call("call_0", "ApplyPatch", json.dumps({"input": PATCH}))
        self.fake.answer(Answer("I should patch it.", calls=(call,), piece=piece), Answer("Fine.", "Done."))
        seen: list[tuple[str, str]] = []
        client = self.client(
            self.proxy(display_reasoning=display), tools=self.TOOLS, stream=stream,
            run_tool=lambda name, arguments: seen.append((name, arguments)) or "patched",
        )  # fmt: skip
        turn = client.ask("patch it")
        self.assertTrue(turn.final.is_whole)
        self.assertEqual([("ApplyPatch", PATCH)], seen)
        self.assert_upstream_saw("I should patch it.")
        sent = self.sent()[2]["tool_calls"][0]["function"]
        self.assertEqual({"input": PATCH}, json.loads(sent["arguments"]))
        # Plan mode has no ApplyPatch; the turn is still the same one.
        client.tools = [*TOOLS]
        client.ask("and now?")
        self.assert_upstream_saw("I should patch it.", "Fine.")
        self.assertEqual([], self.fake.refused)

    def test_a_custom_tool_in_openais_shape_is_called_in_that_shape_and_found_again(self) -> None:
        nested = {"name": "ApplyPatch", "format": {"type": "grammar", "grammar": GRAMMAR}}
        tools = [*TOOLS, {"type": "custom", "custom": nested}]
        question = {"role": "user", "content": "patch it"}
        for stream in (True, False):
            for arguments in (json.dumps({"input": PATCH}), json.dumps({"why": "so", "input": PATCH}, indent=1)):
                made = Call("call_0", "ApplyPatch", arguments)
                self.fake.answer(
                    Answer("I should.", calls=(made, READ)), Answer("Fine.", "Done."), Answer("Ok.", "Ok.")
                )
                proxy = self.proxy(display_reasoning=False)
                with self.subTest(stream=stream, arguments=arguments):
                    calls = self.calls_of(proxy, stream, messages=[question], tools=tools)
                    custom = {"id": "call_0", "type": "custom", "custom": {"name": "ApplyPatch", "input": PATCH}}
                    function = {"name": READ.name, "arguments": READ.arguments}
                    self.assertEqual([custom, {"id": READ.id, "type": "function", "function": function}], calls)
                    results = [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in calls]
                    history = [question, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
                    # The tool may be gone from the next request.
                    for declared in (tools, list(TOOLS)):
                        self.post(proxy, messages=history, tools=declared)
                        self.assert_upstream_saw("I should.")
                        sent = self.sent()[1]["tool_calls"][0]["function"]
                        self.assertEqual({"input": PATCH}, json.loads(sent["arguments"]))
        self.assertEqual([], self.fake.refused)

    def calls_of(self, proxy: RunningProxy, stream: bool, **body: Any) -> list[dict[str, Any]]:
        """The calls of an answer, those of a stream added up as a client does it."""
        reply = self.round_trip(proxy, {"model": "deepseek-v4-pro", "stream": stream, **body})
        if not stream:
            return [
                {name: value for name, value in call.items() if name != "index"}
                for call in reply.value["choices"][0]["message"]["tool_calls"]
            ]
        calls: dict[int, dict[str, Any]] = {}
        for chunk in reply.chunks:
            for piece in chunk["choices"][0]["delta"].get("tool_calls", ()):
                call = calls.setdefault(piece["index"], {})
                for name in ("id", "type"):
                    call |= {name: piece[name]} if name in piece else {}
                for kind in piece.keys() & {"function", "custom"}:
                    fields = call.setdefault(kind, {})
                    for name, text in piece[kind].items():
                        fields[name] = fields.get(name, "") + (text or "")
        return [calls[index] for index in sorted(calls)]

    def test_json_like_free_text_is_sent_as_json_when_its_tool_is_gone(self) -> None:
        for text in ("{ const files = 1 }", '{"half": ', "42", '["a"]'):
            with self.subTest(text):
                call = Call("call_0", "ApplyPatch", json.dumps({"input": text}))
                self.fake.answer(Answer("I should run it.", calls=(call,)), Answer("Fine.", "Done."))
                client = self.client(self.proxy(display_reasoning=False), tools=self.TOOLS)
                client.ask("run it")
                client.tools = [*TOOLS]
                client.ask("and now?")
                self.assert_upstream_saw("I should run it.", "Fine.")
                [sent] = [message["tool_calls"] for message in self.sent() if message.get("tool_calls")]
                self.assertEqual({"input": text}, json.loads(sent[0]["function"]["arguments"]))
        self.assertEqual([], self.fake.refused)

    def test_a_custom_call_cut_by_a_stop_is_found_again(self) -> None:
        proxy = self.proxy(display_reasoning=False)
        call = Call("call_0", "ApplyPatch", json.dumps({"input": PATCH}))
        self.fake.answer(Answer("Half a thought.", calls=(call,), piece=16, cut_after=6))
        client = self.client(proxy, tools=self.TOOLS)
        answer = client.ask("patch it").final
        self.assertIsNone(answer.finish_reason)
        self.assertTrue(PATCH.startswith(answer.calls[0].arguments))
        function = {"name": "ApplyPatch", "arguments": answer.calls[0].arguments}
        calls = [{"id": "call_0", "function": function}]
        client.messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        client.ask("go on")
        self.assert_upstream_saw("Half a thought.")


class TestAnthropicBlocks(ShapesTestCase):
    def test_a_tool_loop_of_anthropic_blocks_keeps_its_reasoning(self) -> None:
        proxy = self.proxy(display_reasoning=False)
        call = Call("call_7", "Grep", '{"q": "x"}')
        self.fake.answer(Answer("I will grep.", calls=(call,)), Answer("Found.", "Done."))
        history: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "find"}]}]
        body = {"model": "my-claude", "system": [{"type": "text", "text": "s"}], "tools": [BARE]}
        _, first = self.post(proxy, messages=history, **body)
        made = first["choices"][0]["message"]["tool_calls"][0]
        use = {"type": "tool_use", "id": made["id"], "name": "Grep", "input": json.loads(made["function"]["arguments"])}
        answer = {"type": "tool_result", "tool_use_id": made["id"], "content": [{"type": "text", "text": "a.py"}]}
        more = {"type": "text", "text": "and hurry", "cache_control": {"type": "ephemeral"}}
        history += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [answer, more]}]
        status, _ = self.post(proxy, messages=history, **body)
        self.assertEqual(200, status)
        self.assert_upstream_saw("I will grep.")
        self.assertEqual(["system", "user", "assistant", "tool", "user"], [each["role"] for each in self.sent()])
        self.assertEqual(["a.py", "and hurry"], [each["content"] for each in self.sent()[3:]])
        self.assertEqual([], self.fake.refused)


class TestImages(ShapesTestCase):
    PARTS = (
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": PNG}},
        {"type": "input_image", "image_url": PNG + "BBBB"},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
    )

    def history(self) -> list[dict[str, Any]]:
        call = {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}
        shot = {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "/9j/" + "A" * 3996}}
        return [
            {"role": "user", "content": list(self.PARTS)},
            {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "shot"}, shot]},
        ]

    def test_vision_models_get_images(self) -> None:
        status, _ = self.post(self.proxy(), model="deepseek-flash", messages=self.history(), tools=TOOLS)
        self.assertEqual(200, status)
        kinds = [part["type"] for part in self.sent()[0]["content"]]
        self.assertEqual(["text", "image_url", "image_url", "image_url"], kinds)
        self.assertRegex(self.sent()[2]["content"], r"^shot\n\[image: image/jpeg, 3 kB, [0-9a-f]{12}\]$")

    def test_text_models_get_a_stable_placeholder_for_an_image(self) -> None:
        before: list[dict[str, Any]] = []
        for messages in (self.history(), [*self.history(), {"role": "user", "content": "and?"}]):
            self.assertEqual(200, self.post(self.running, model="deepseek-v4-pro", messages=messages, tools=TOOLS)[0])
            self.assertEqual(before, self.sent()[: len(before)])
            before = self.sent()
        words = before[0]["content"].split("\n")
        self.assertRegex(words[1], r"^\[image: image/png, 12 kB, [0-9a-f]{12}\]$")
        self.assertNotEqual(words[1], words[2])
        self.assertRegex(words[3], r"^\[image: https://example\.com/a\.png, [0-9a-f]{12}\]$")

    def test_an_image_that_is_too_large_is_a_413(self) -> None:
        limit = width(1, 32) * 1024 * 1024
        self.enterContext(mock.patch.object(images, "MAX_BYTES_INLINE", limit))
        large = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * (limit * 45 // 32)}}
        hi = [{"role": "user", "content": [large]}]
        status, body = self.post(self.proxy(), model="deepseek-flash", messages=hi)
        self.assertEqual((413, "image_too_large"), (status, body["error"]["code"]))
        self.assertIn("32 MiB", body["error"]["message"])
        self.assertEqual([], self.fake.seen)
        self.assertEqual(200, self.post(self.proxy(), model="deepseek-v4-pro", messages=hi)[0])


class TestModelNames(SocketTestCase):
    def test_the_answer_has_the_model_name_of_the_request(self) -> None:
        proxy = self.proxy(models={"gpt-5.6-sol": PRO})
        for stream in (True, False):
            answer = self.client(proxy, stream=stream, model="GPT-5.6-sol-max[1m]").ask("hi").final
            self.assertEqual({"GPT-5.6-sol-max[1m]"}, {event["model"] for event in answer.events})
            sent = self.fake.accepted[-1]
            self.assertEqual((PRO, "max"), (sent["model"], sent["reasoning_effort"]))

    def test_model_aliases_are_listed_and_work_as_azure_deployments(self) -> None:
        proxy = self.proxy(models={"gpt-5.6-sol": FLASH, "gpt-*": PRO})
        sock = self.connect(proxy, b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        names = [model["id"] for model in json.loads(read_reply(sock)[2])["data"]]
        self.assertEqual([PRO, FLASH, "gpt-5.6-sol"], names)
        body = {"messages": [{"role": "user", "content": "x"}]}
        sock.sendall(request_bytes(body, path="/openai/deployments/gpt-5.6-sol/chat/completions"))
        self.assertEqual("gpt-5.6-sol", json.loads(read_reply(sock)[2])["model"])
        self.assertEqual(FLASH, self.fake.accepted[-1]["model"])
