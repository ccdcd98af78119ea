"""Which clients see the thinking inside the answer, over sockets."""

from typing import Any

from tests.fake_deepseek import Answer, Call
from tests.support.harness import RunningProxy, SocketTestCase
from tests.support.histories import TOOLS
from tests.unit.api.test_clients import WITHOUT_BLOCK

BLOCK = "<details>\n<summary>Thinking</summary>\n\nHm.\n</details>\n\n"
SDK = ("User-Agent: OpenAI/Python 2.54.0", "x-stainless-lang: python")
CURSOR = ("User-Agent: Cursor/3.17.21",)
ID = "call_00_abcdefghijklmnopqrstuvwx"


class TestDisplay(SocketTestCase):
    def told(self, proxy: RunningProxy, headers: tuple[str, ...], **body: Any) -> tuple[str, str]:
        """The text and the reasoning that a client is told, streamed."""
        history = body.pop("messages", [user("hi")])
        reply = self.chat(proxy, *history, headers=headers, stream=True, **body)
        deltas = [chunk["choices"][0]["delta"] for chunk in reply.chunks]
        return reply.text, "".join(delta.get("reasoning_content") or "" for delta in deltas)

    def test_an_agent_that_runs_code_never_finds_a_thought_in_the_text(self) -> None:
        thought = "Perhaps\n```bash\nrm -rf /\n```\nNo!"
        for name, (agent, headers) in WITHOUT_BLOCK.items():
            lines = (f"User-Agent: {agent}", *(f"{key}: {value}" for key, value in headers.items()))
            self.fake.answer(Answer(reasoning=thought, content="Done."), Answer(reasoning=thought, content="Done."))
            with self.subTest(name):
                self.assertEqual(("Done.", thought), self.told(self.running, lines))
                message = self.chat(self.running, user("hi"), headers=lines).value["choices"][0]["message"]
                self.assertEqual(("Done.", thought), (message["content"], message["reasoning_content"]))

    def test_the_setting_decides_for_every_client(self) -> None:
        hidden, shown = ("Hi.", "Hm."), (BLOCK + "Hi.", "")
        for setting, headers, expected in (
            ("auto", SDK, hidden),
            ("auto", CURSOR, shown),
            ("auto", (), shown),
            ("on", SDK, shown),
            (True, SDK, shown),
            ("off", CURSOR, hidden),
            (False, (), hidden),
        ):
            self.fake.answer(Answer(reasoning="Hm.", content="Hi."))
            with self.subTest(setting, headers=headers):
                self.assertEqual(expected, self.told(self.proxy(display_reasoning=setting), headers))

    def test_a_chat_continues_in_another_client_with_the_same_reasoning(self) -> None:
        call = Call(ID, "read_file", '{"path": "a.py"}')
        sent = {"id": ID, "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a.py"}'}}
        for first, second in ((CURSOR, SDK), (SDK, CURSOR), ((), SDK)):
            proxy = self.proxy()
            self.fake.answer(Answer(reasoning="Hm.", content="Looking.", calls=(call,)))
            text, _ = self.told(proxy, first, tools=TOOLS)
            history = [
                user("hi"),
                {"role": "assistant", "content": text, "tool_calls": [sent]},
                {"role": "tool", "tool_call_id": ID, "content": "42"},
            ]
            bodies = []
            for headers in (first, second):
                self.told(proxy, headers, messages=history, tools=TOOLS)
                bodies.append(self.fake.accepted[-1])
            with self.subTest(first=first):
                self.assertEqual(bodies[0], bodies[1])
                turn = bodies[1]["messages"][1]
                self.assertEqual(("Looking.", "Hm."), (turn["content"], turn["reasoning_content"]))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}
