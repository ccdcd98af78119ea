"""What only DeepSeek's beta path has: requests that use it go there, all others where they always go."""

from typing import Any

from tests.fake_deepseek import Answer, Call, Failure, FakeDeepSeek
from tests.support.harness import RunningProxy, SocketTestCase
from tests.support.histories import tool_calls

QUESTION = {"role": "user", "content": "q"}
PREFIX = {"role": "assistant", "content": "Sure, ", "prefix": True}
SCHEMA = {"type": "object", "properties": {"p": {"type": "string"}}, "required": ["p"], "additionalProperties": False}
STRICT = {"type": "function", "function": {"name": "look", "parameters": SCHEMA, "strict": True}}
LOOSE = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
CALL = Call("call_00_abcdefghijklmnop123456", "look", '{"p":"a"}')
CALLING = Answer(reasoning="Look first.", content="", calls=(CALL,))
HISTORY = (
    QUESTION,
    {"role": "assistant", "content": "", "tool_calls": tool_calls([CALL])},
    {"role": "tool", "tool_call_id": CALL.id, "content": "ok"},
)
PLAIN_PATH, BETA_PATH = "/chat/completions", "/beta/chat/completions"


class BetaPathTest(SocketTestCase):
    def deepseek(self, end: str = "", **settings: Any) -> RunningProxy:
        url = f"{self.fake.url}{end}"
        return self.proxy(
            **{"upstream_base_url": url, "upstream_host": "deepseek", "display_reasoning": "off", **settings}
        )

    def test_a_request_with_a_prefix_or_strict_tools_goes_to_the_beta_path(self) -> None:
        for end in ("", "/", "/v1", "/beta"):
            proxy = self.deepseek(end)
            for stream in (False, True):
                with self.subTest(end, stream=stream):
                    self.fake.forget()
                    self.chat(proxy, QUESTION, PREFIX, stream=stream)
                    self.assertTrue(self.fake.accepted[-1]["messages"][-1]["prefix"])
                    self.chat(proxy, QUESTION, tools=[STRICT], stream=stream)
                    self.assertTrue(self.fake.accepted[-1]["tools"][0]["function"]["strict"])
                    self.chat(proxy, QUESTION, tools=[LOOSE], stream=stream)
                    usual = f"{end.rstrip('/')}{PLAIN_PATH}"
                    self.assertEqual([BETA_PATH, BETA_PATH, usual], [each.path for each in self.fake.seen])

    def test_reasoning_is_found_whichever_path_the_turn_came_by(self) -> None:
        for first, second in ((STRICT, LOOSE), (LOOSE, STRICT)):
            self.fake.forget()
            proxy = self.deepseek()
            self.fake.answer(CALLING)
            self.chat(proxy, QUESTION, tools=[first])
            self.chat(proxy, *HISTORY, tools=[second])
            self.assertEqual("Look first.", self.fake.accepted[-1]["messages"][1]["reasoning_content"])
            self.assertEqual([], self.fake.refused)

    def test_of_several_upstreams_each_gets_what_it_takes(self) -> None:
        spare = self.enterContext(FakeDeepSeek(has_chat_alone=True))
        tables = {
            "main": {"base_url": self.fake.url, "host": "deepseek", "priority": 1},
            "spare": {"base_url": spare.url, "priority": 2},
        }
        proxy = self.proxy(upstreams=tables, display_reasoning="off")
        self.fake.answer(Failure(402))
        self.chat(proxy, QUESTION, PREFIX, tools=[STRICT])
        self.assertEqual([BETA_PATH], [each.path for each in self.fake.seen])
        self.assertEqual([PLAIN_PATH], [each.path for each in spare.seen])
        self.assertEqual([], spare.refused)
