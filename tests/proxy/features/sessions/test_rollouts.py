"""Rollouts: what environments for training expect of a proxy with sessions, case by case.

The cases are those of the tests that the proxy of Atropos has for itself. What differs here is in
.github/docs/sessions.md; the last test has it.
"""

import json
from pathlib import Path
from typing import Any

from tests.fake_deepseek import Answer
from tests.proxy.features.sessions.test_sessions import SessionsTestCase
from tests.support.apis import CHAT, MESSAGES, RESPONSES, Api
from tests.support.features import needs

WIRE = Path(__file__).parents[3] / "wire"
UNKNOWN = "00000000-0000-4000-8000-000000000000"
TOOLS = [
    {"type": "function", "function": {"name": "search", "parameters": {}}},
    {"type": "function", "function": {"name": "forecast"}},
]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def written(name: str, **arguments: Any) -> Answer:
    return Answer(content=f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>")


class RolloutTestCase(SessionsTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.running = self.proxy(tokenizer=WIRE / "tokenizer.json", upstream_model="deepseek-v4-pro")

    def post(self, session: str, path: str = "", **body: Any) -> Any:
        """Ask in a session; without a model, as these clients do."""
        return self.json("POST", f"/{session}/v1/chat/completions{path}", body)

    def ask(self, session: str, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
        choice: dict[str, Any] = self.post(session, messages=list(messages), **fields)["choices"][0]
        return choice


class TestSessions(RolloutTestCase):
    def test_health_has_the_model_and_the_numbers_of_sessions_and_servers_and_needs_no_key(self) -> None:
        expected = {"status": "ok", "model": "deepseek-v4-pro", "sessions": 0, "servers": 1}
        self.assertEqual(expected, self.round_trip(self.running, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").value)

    def test_a_session_says_its_model_and_its_parser(self) -> None:
        for options in ({}, {"tool_parser": "hermes"}):
            created = self.create(**options)
            self.assertEqual(("deepseek-v4-pro", "hermes"), (created["model_name"], created["tool_parser"]))
            self.assertEqual("hermes", self.json("GET", f"/{created['uuid']}")["tool_parser"])

    def test_an_unknown_session_is_an_error_in_the_form_of_openai(self) -> None:
        for name in (UNKNOWN, "nonexistent-uuid"):
            for method, path in (("DELETE", ""), ("GET", "/nodes"), ("POST", "/v1/chat/completions")):
                with self.subTest(method, path=path, name=name):
                    reply = self.reply(
                        method, f"/{name}{path}", {"messages": [user("Hi")]} if method == "POST" else None
                    )
                    self.assertEqual(404, reply.status)
                    self.assertLessEqual({"message", "type", "code"}, json.loads(reply.body)["error"].keys())


class TestToolCalls(RolloutTestCase):
    @needs("written_calls")
    def test_a_call_that_the_model_writes_is_a_call_and_one_node(self) -> None:
        for options in ({}, {"tool_parser": "hermes"}):
            with self.subTest(options):
                session = self.create(**options)["uuid"]
                self.fake.answer(written("search", query="cats"))
                choice = self.ask(session, user("Search cats"), tools=TOOLS)
                self.assertEqual("tool_calls", choice["finish_reason"])
                (call,) = choice["message"]["tool_calls"]
                self.assertEqual("search", call["function"]["name"])
                self.assertEqual({"query": "cats"}, json.loads(call["function"]["arguments"]))
                (node,) = self.nodes(session)
                self.assertIn('<tool_call>\n{"name": "search", "arguments": {"query": "cats"}}\n', node["full_text"])

    def test_with_tool_choice_none_it_is_text(self) -> None:
        session = self.create(tool_parser="hermes")["uuid"]
        self.fake.answer(written("search", query="cats"))
        choice = self.ask(session, user("Search cats"), tools=TOOLS, tool_choice="none")
        self.assertEqual(("stop", None), (choice["finish_reason"], choice["message"].get("tool_calls")))
        self.assertTrue(choice["message"]["content"].startswith("<tool_call>"))


class TestRender(RolloutTestCase):
    def test_a_prompt_is_rendered_with_its_tools_and_tokens_and_makes_no_node(self) -> None:
        session = self.create()["uuid"]
        rendered = self.post(session, "/render", messages=[user("Hello")], tools=TOOLS)
        self.assertEqual(rendered["num_tokens"], len(rendered["token_ids"]))
        self.assertIn("user\nHello", rendered["prompt_text"])
        self.assertIn('"search"', rendered["prompt_text"])
        self.assertEqual([], self.nodes(session))


class TestNodes(RolloutTestCase):
    def test_the_lists_of_a_node_have_one_length_and_the_prompt_is_masked(self) -> None:
        session = self.create()["uuid"]
        prompt = self.post(session, "/render", messages=[user("Hi")])["num_tokens"]
        self.fake.answer(Answer(content="Hello!"))
        self.ask(session, user("Hi"))
        (node,) = self.nodes(session)
        self.assertEqual(1, len({len(node[name]) for name in ("tokens", "masked_tokens", "logprobs")}))
        self.assertEqual({-100}, set(node["masked_tokens"][:prompt]))
        self.assertEqual({1.0}, set(node["logprobs"][:prompt]))
        answer = [token for token in node["masked_tokens"] if token != -100]
        self.assertEqual(answer, node["tokens"][prompt : prompt + len(answer)])

    def test_a_rollout_of_many_steps_is_one_node(self) -> None:
        for steps in (
            [
                written("search", city="SF"),
                "72°F.",
                written("forecast", city="SF"),
                "Rain.",
                written("search"),
                "55°F.",
            ],
            [f"Answer {number}" for number in range(5)],
            [written("search", q="cats"), "Ten cats!", written("search", q="dogs"), "Five dogs!", "You're welcome!"],
        ):
            session = self.create(tool_parser="hermes")["uuid"]
            chat: list[dict[str, Any]] = []
            for number, step in enumerate(steps):
                self.fake.answer(step if isinstance(step, Answer) else Answer(content=step))
                chat += [] if chat and chat[-1]["role"] == "tool" else [user(f"Question {number}")]
                message = self.ask(session, *chat, tools=TOOLS)["message"]
                calls = message.get("tool_calls") or []
                echo = {"tool_calls": calls, "content": None} if calls else {"content": message["content"]}
                chat += [{"role": "assistant", **echo}]
                chat += [{"role": "tool", "tool_call_id": call["id"], "content": "done"} for call in calls]
                self.assertEqual(1, len(self.nodes(session)))
            (node,) = self.nodes(session)
            self.assertEqual([each["role"] for each in chat], [each["role"] for each in node["messages"]])
            self.assertTrue({True, False} == {token == -100 for token in node["masked_tokens"]})

    def test_what_differs_from_other_recorders(self) -> None:
        session = self.create()["uuid"]
        self.fake.answer(Answer(content="Hello!"))
        answer = self.post(session, messages=[user("Hi")])
        # The upstream's own id, and more models than one.
        self.assertNotEqual("", answer["id"])
        self.assertGreater(len(self.json("GET", "/v1/models")["data"]), 1)
        # No log probability is made up, and the end mark is the template's.
        (node,) = self.nodes(session)
        self.assertEqual({None, 1.0}, set(node["logprobs"]))
        self.assertEqual(-100, node["masked_tokens"][-1])


@needs("written_calls", "responses", "messages")
class TestWrittenCalls(SessionsTestCase):
    def told(self, api: Api, *, stream: bool, session: str = "", proxy: Any = None) -> str:
        body = api.body("Hi", tools=[api.tool("search")], stream=stream)
        reply = self.reply("POST", f"{session and f'/s/{session}'}{api.path}", body, proxy=proxy)
        self.assertEqual(200, reply.status, reply.body[:300])
        return reply.body.decode()

    def test_texts_and_calls_are_in_their_order_streamed_and_plain(self) -> None:
        for api, name, kinds in (
            (RESPONSES, "output", ["reasoning", "message", "function_call", "message"]),
            (MESSAGES, "content", ["thinking", "text", "tool_use", "text"]),
        ):
            for stream in (False, True):
                with self.subTest(api, stream=stream):
                    session = self.create(tool_parser="hermes")["uuid"]
                    content = f"Before. {written('search', q='cats').content} After."
                    self.fake.answer(Answer(reasoning="So.", content=content))
                    text = self.told(api, stream=stream, session=session)
                    if not stream:
                        found = [each["type"] for each in json.loads(text)[name]]
                    else:
                        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
                        begun = [each.get("item") or each.get("content_block") for each in events]
                        found = [
                            item["type"]
                            for item, event in zip(begun, events, strict=True)
                            if item and event["type"] in ("response.output_item.added", "content_block_start")
                        ]
                    self.assertEqual(kinds, found)

    def test_the_turn_is_found_again_and_goes_up_as_a_call(self) -> None:
        session = self.create(tool_parser="hermes")["uuid"]
        self.fake.answer(
            Answer(reasoning="So.", content=written("read_file", path="a").content), Answer(content="Done.")
        )
        tools = [{"type": "function", "function": {"name": "read_file"}}]
        message = SessionsTestCase.ask(self, session, user("Hi"), tools=tools)["choices"][0]["message"]
        del message["reasoning_content"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "1"}
        SessionsTestCase.ask(self, session, user("Hi"), message, result, tools=tools)
        sent = self.fake.seen[-1].payload["messages"][1]
        self.assertEqual(("So.", ""), (sent["reasoning_content"], sent["content"] or ""))
        self.assertEqual(message["tool_calls"][0]["id"], sent["tool_calls"][0]["id"])

    def test_deepseek_reads_its_calls_itself_unless_the_session_names_the_parser(self) -> None:
        proxy = self.proxy(upstream_host="deepseek")
        default = self.json("POST", "/sessions/create", {}, proxy=proxy)["uuid"]
        named = self.json("POST", "/sessions/create", {"tool_parser": "hermes"}, proxy=proxy)["uuid"]
        for session, is_call in (("", False), (default, False), (named, True)):
            for stream in (False, True):
                self.fake.answer(written("search", q="cats"))
                text = self.told(CHAT, stream=stream, session=session, proxy=proxy)
                self.assertEqual(is_call, '"tool_calls"' in text)
