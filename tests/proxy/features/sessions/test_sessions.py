"""Sessions over real sockets: every API recorded by its path, and what comes out compared with what DeepSeek saw."""

import json
from typing import Any

from tests.fake_deepseek import Answer, Call, Raw
from tests.support.apis import APIS
from tests.support.features import needs
from tests.support.harness import RawReply, RunningProxy, SocketTestCase, request_bytes
from tests.support.histories import TOOLS

KEY, OTHER_KEY = "sk-of-the-owner", "sk-of-another"


class SessionsTestCase(SocketTestCase):
    def reply(
        self, method: str, path: str, body: Any = b"", *, proxy: RunningProxy | None = None, key: str = KEY
    ) -> RawReply:
        return self.call(proxy or self.running, method, path, body, key=key, headers=("Host: localhost:9",))

    def json(self, *request: Any, **details: Any) -> Any:
        reply = self.reply(*request, **details)
        self.assertEqual(200, reply.status, reply.body[:500])
        return reply.value

    def create(self, **options: Any) -> Any:
        return self.json("POST", "/sessions/create", options)

    def ask(self, session: str, *messages: dict[str, Any], **fields: Any) -> Any:
        return self.chat(self.running, *messages, path=f"/s/{session}/v1/chat/completions", key=KEY, **fields).value

    def listed(self) -> Any:
        return self.json("GET", "/sessions")["sessions"]

    def nodes(self, session: str) -> Any:
        return self.json("GET", f"/s/{session}/nodes")["nodes"]


QUESTION = {"role": "user", "content": "What is in a?"}


class TestSessions(SessionsTestCase):
    def test_a_session_is_created_listed_read_and_deleted(self) -> None:
        created = self.create(name="Try / 1 ✓", tags=["x"])
        session = created["uuid"]
        self.assertEqual(f"http://localhost:9/s/{session}/v1", created["base_url"])
        self.assertEqual(("Try / 1 ✓", "hermes", ["x"]), (created["name"], created["tool_parser"], created["tags"]))
        self.assertEqual([session], [each["uuid"] for each in self.listed()])
        for path in (f"/s/{session}", f"/{session}"):
            self.assertEqual(session, self.json("GET", path)["uuid"])
        self.assertEqual(1, self.json("GET", "/health")["sessions"])
        self.assertEqual({"status": "deleted", "uuid": session}, self.json("DELETE", f"/{session}"))
        self.assertEqual([404, 404], [self.reply(method, f"/s/{session}").status for method in ("GET", "DELETE")])
        self.assertEqual(0, self.json("GET", "/health")["sessions"])

    @needs("response_cache")
    def test_an_answer_of_the_response_cache_is_recorded(self) -> None:
        session = self.create()["uuid"]
        self.fake.answer(Answer(reasoning="A thought.", content="Done."))
        for _ in range(2):
            self.ask(session, QUESTION, cache=True)
        self.assertEqual(1, len(self.fake.seen))
        found = self.json("GET", f"/s/{session}")
        self.assertEqual((2, 1), (found["num_requests"], found["num_nodes"]))

    def test_another_encoding_than_hermes_is_refused(self) -> None:
        for name in ("deepseek", "other"):
            reply = self.reply("POST", "/sessions/create", {"tool_parser": name})
            self.assertEqual((400, "tool_parser"), (reply.status, reply.value["error"]["param"]))

    def test_lone_surrogates_are_no_error(self) -> None:
        self.create(name="\ud800", tags=["\ud800"])
        self.assertEqual([["?", ["\ud800"]]], [[each["name"], each["tags"]] for each in self.listed()])

    def test_usage_that_adds_up_to_infinity_breaks_neither_nodes_nor_exports(self) -> None:
        for odd in (1.7e308, 9 * 10**4298, -(10**20)):
            with self.subTest(str(odd)[:8]):
                session = self.create()["uuid"]
                history = [QUESTION]
                for _ in range(3):
                    choice = {"index": 0, "message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}
                    usage = {"prompt_tokens": odd, "cost": odd, "prompt_tokens_details": {"x": odd}}
                    body = json.dumps({"choices": [choice], "usage": usage})
                    self.fake.answer(Raw(f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{body}".encode()))
                    self.ask(session, *history)
                    history += [choice["message"], QUESTION]
                (node,) = self.nodes(session)
                self.assertEqual({"prompt_tokens": 0, "cost": 0, "prompt_tokens_details": {"x": 0}}, node["usage"])
                for form in ("openai", "sharegpt", "hermes", "nodes"):
                    exported = self.reply("GET", f"/s/{session}/export?format={form}").body
                    self.assertNotIn(b"Infinity", exported)
                    json.loads(exported)

    def test_a_session_belongs_to_its_key(self) -> None:
        session = self.create()["uuid"]
        self.ask(session, QUESTION)
        self.assertEqual([], self.json("GET", "/sessions", key=OTHER_KEY)["sessions"])
        for method, path in (
            ("GET", f"/s/{session}"), ("DELETE", f"/s/{session}"), ("GET", f"/s/{session}/nodes"),
            ("GET", f"/s/{session}/export"),
        ):  # fmt: skip
            with self.subTest(method, path=path):
                self.assertEqual(404, self.reply(method, path, key=OTHER_KEY).status)
        self.assertEqual(1, len(self.nodes(session)))

    @needs("responses", "messages")
    def test_an_unknown_session_is_an_error_in_the_shape_of_the_api_and_calls_nobody(self) -> None:
        body = {"model": "m", "messages": [QUESTION], "max_tokens": 2000, "input": "x"}
        for path in ("chat/completions", "responses", "messages"):
            for prefix in ("/s/none", "/s/00000000-0000-0000-0000-000000000000"):
                with self.subTest(path):
                    reply = self.reply("POST", f"{prefix}/v1/{path}", body)
                    self.assertEqual(404, reply.status)
                    self.assertEqual(path == "messages", json.loads(reply.body).get("type") == "error")
        self.assertEqual([], self.fake.seen)

    def test_an_expired_session_is_gone(self) -> None:
        session = self.create(ttl_seconds=0.0001)["uuid"]
        self.assertEqual(404, self.reply("GET", f"/s/{session}").status)


class TestNodes(SessionsTestCase):
    def test_a_chat_with_tools_is_one_node_with_the_reasoning_that_deepseek_saw(self) -> None:
        session = self.create()["uuid"]
        self.fake.answer(
            Answer(
                reasoning="I read it.", calls=(Call("call_00_abcdefghijklmnopqrstu", "read_file", '{"path": "a"}'),)
            ),
            Answer(reasoning="It says 1.", content="A one."),
        )
        first = self.ask(session, QUESTION, tools=TOOLS)["choices"][0]["message"]
        echo = {"role": "assistant", "content": "", "tool_calls": first["tool_calls"]}
        result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "1"}
        self.ask(session, QUESTION, echo, result, tools=TOOLS)
        (node,) = self.nodes(session)
        sent = self.fake.seen[-1].payload["messages"]
        self.assertEqual(
            [message.get("reasoning_content") for message in sent],
            [message.get("reasoning_content") for message in node["messages"][:-1]],
        )
        self.assertEqual(["user", "assistant", "tool", "assistant"], [message["role"] for message in node["messages"]])
        self.assertEqual("It says 1.", node["messages"][-1]["reasoning_content"])
        self.assertEqual([1, 2], node["metadata"]["request_numbers"])
        self.assertEqual(
            ("chat", "stop", True), tuple(node["metadata"][name] for name in ("api", "finish_reason", "is_complete"))
        )
        self.assertIn("<think>\nI read it.\n</think>", node["full_text"])
        self.assertEqual([None] * 3, [node[name] for name in ("tokens", "masked_tokens", "logprobs")])
        self.assertTrue(node["estimated"])
        self.assertEqual(1, len(self.json("GET", "/sessions")["sessions"]))

    @needs("choices")
    def test_several_answers_are_branches(self) -> None:
        session = self.create()["uuid"]
        self.fake.answer(Answer(content="One."), Answer(content="Two."))
        usage = self.ask(session, QUESTION, n=2)["usage"]
        nodes, (found,) = self.nodes(session), self.listed()
        # The request was paid once.
        self.assertEqual((usage["total_tokens"], 1), (found["tokens"], sum(node["cost"] is not None for node in nodes)))
        self.assertEqual(found["cost"], sum(node["cost"] or 0 for node in nodes))
        self.assertEqual({"One.", "Two."}, {node["messages"][-1]["content"] for node in nodes})

    @needs("responses", "messages")
    def test_every_api_streamed_and_plain_is_recorded(self) -> None:
        for api in APIS:
            for stream in (False, True):
                with self.subTest(api, stream=stream):
                    session = self.create()["uuid"]
                    self.fake.answer(Answer(reasoning="Thought.", content="Text."))
                    reply = self.reply("POST", f"/s/{session}{api.path}", api.body([QUESTION], stream=stream))
                    self.assertEqual(200, reply.status, reply.body[:300])
                    (node,) = self.nodes(session)
                    last = {"role": "assistant", "content": "Text.", "reasoning_content": "Thought."}
                    self.assertEqual([QUESTION, last], node["messages"])

    @needs("responses", "messages")
    def test_a_chat_that_moves_between_the_apis_stays_one_node(self) -> None:
        session = self.create()["uuid"]
        self.fake.answer(Answer(reasoning="One.", content="First."), Answer(reasoning="Two.", content="Second."))
        self.ask(session, QUESTION)
        history = [QUESTION, {"role": "assistant", "content": "First."}, {"role": "user", "content": "Go on."}]
        body = {"model": "deepseek-v4-pro", "messages": history, "max_tokens": 2000}
        self.json("POST", f"/{session}/v1/messages", body)
        (node,) = self.nodes(session)
        self.assertEqual(["One.", "Two."], [each["reasoning_content"] for each in node["messages"][1::2]])

    def test_a_request_outside_of_sessions_is_recorded_only_if_all_are(self) -> None:
        body = {"model": "deepseek-v4-pro", "messages": [QUESTION]}
        self.json("POST", "/v1/chat/completions", body)
        self.assertEqual([], self.json("GET", "/sessions")["sessions"])
        proxy = self.proxy(record="all")
        for _ in range(2):
            self.json("POST", "/v1/chat/completions", body, proxy=proxy)
        (session,) = self.json("GET", "/sessions", proxy=proxy)["sessions"]
        self.assertEqual((2, "What is in a?"), (session["num_requests"], session["name"]))

    def test_a_refused_request_makes_no_node(self) -> None:
        session = self.create()["uuid"]
        self.assertEqual(400, self.reply("POST", f"/s/{session}/v1/chat/completions", {"messages": 7}).status)
        self.assertEqual([], self.nodes(session))

    def test_a_session_that_is_deleted_while_it_streams_answers_and_stays_deleted(self) -> None:
        session = self.create()["uuid"]
        self.fake.answer(Answer(content="Slow words", stall_after=1))
        body = {"model": "deepseek-v4-pro", "messages": [QUESTION], "stream": True}
        with self.connect(
            self.running,
            request_bytes(body, path=f"/s/{session}/v1/chat/completions", headers=("Connection: close",), key=KEY),
        ) as sock:
            sock.recv(100)
            self.assertEqual(200, self.reply("DELETE", f"/s/{session}").status)
            self.fake.release.set()
            while sock.recv(65536):
                pass
        self.assertEqual(404, self.reply("GET", f"/s/{session}").status)


class TestRender(SessionsTestCase):
    def test_the_prompt_is_that_of_the_request_with_its_reasoning_and_nothing_is_sent(self) -> None:
        session = self.create()["uuid"]
        self.fake.answer(Answer(reasoning="It says 1.", content="A one."))
        self.ask(session, QUESTION, tools=TOOLS)
        history = [QUESTION, {"role": "assistant", "content": "A one."}, {"role": "user", "content": "Sure?"}]
        body = {"model": "deepseek-v4-pro", "messages": history, "tools": TOOLS}
        found = self.json("POST", f"/s/{session}/v1/chat/completions/render", body)
        self.assertEqual(1, len(self.fake.seen))
        self.assertEqual(1, len(self.nodes(session)))
        self.assertIn("<think>\nIt says 1.\n</think>\n\nA one.<|im_end|>", found["prompt_text"])
        self.assertTrue(found["prompt_text"].endswith("Sure?<|im_end|>\n<|im_start|>assistant\n"))
        self.assertEqual((None, True), (found["token_ids"], found["estimated"]))
        self.assertGreater(found["num_tokens"], 10)

    def test_roles_are_those_that_deepseek_saw(self) -> None:
        session = self.create()["uuid"]
        note = {"role": "system", "content": "A note."}
        self.ask(session, QUESTION, note)
        [sent] = self.fake.accepted
        self.assertEqual(["user", "user"], [message["role"] for message in sent["messages"]])
        (line,) = self.reply("GET", f"/s/{session}/export").body.splitlines()
        self.assertEqual(["user", "user", "assistant"], [each["role"] for each in json.loads(line)["messages"]])
        body = {"model": "deepseek-v4-pro", "messages": [QUESTION, note]}
        prompt = self.json("POST", f"/s/{session}/v1/chat/completions/render", body)["prompt_text"]
        self.assertIn("<|im_start|>user\nA note.", prompt)

    def test_an_invalid_body_and_a_render_outside_of_a_session_are_refused(self) -> None:
        session = self.create()["uuid"]
        self.assertEqual(400, self.reply("POST", f"/s/{session}/v1/chat/completions/render", {"messages": 7}).status)
        self.assertEqual(404, self.reply("POST", "/v1/chat/completions/render", {"messages": [QUESTION]}).status)


class TestExport(SessionsTestCase):
    def test_each_format_has_a_line_for_each_node(self) -> None:
        session = self.create()["uuid"]
        self.fake.answer(Answer(reasoning="Thought.", content="Text."))
        self.ask(session, QUESTION)
        (line,) = self.reply("GET", f"/s/{session}/export").body.splitlines()
        self.assertEqual("Thought.", json.loads(line)["messages"][1]["reasoning_content"])
        for form, expected in (
            ("sharegpt", {"from": "gpt", "value": "<think>\nThought.\n</think>\n\nText."}),
            ("hermes", "<think>\nThought.\n</think>\n\nText.<|im_end|>"),
            ("nodes", "full_text"),
        ):
            with self.subTest(form):
                (line,) = self.reply("GET", f"/s/{session}/export?format={form}").body.splitlines()
                found = json.loads(line)
                if form == "sharegpt":
                    self.assertEqual(expected, found["conversations"][1])
                elif form == "hermes":
                    self.assertIn(expected, found["text"])
                else:
                    self.assertIn(expected, found)
        self.assertEqual(400, self.reply("GET", f"/s/{session}/export?format=other").status)
