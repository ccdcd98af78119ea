"""Many clients while an upstream dies and comes back: nothing is lost, nothing doubled, each question answered once."""

import json
import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.upstream import breaker
from tests.fake_deepseek import Answer, FakeDeepSeek
from tests.support.harness import read_reply, request_bytes
from tests.support.histories import TOOLS
from tests.support.ports import server_port
from tests.support.upstreams import UpstreamsTestCase
from tests.support.width import width

CLIENTS = width(8, 32)
MUCH_PATIENCE = 60.0


def question_of(payload: dict[str, Any]) -> str:
    return str(payload["messages"][-1]["content"])


def own_words(payload: dict[str, Any]) -> Answer:
    question = question_of(payload)
    return Answer(reasoning=f"Thinking of {question}.", content=f"This answers {question}.", piece=9)


class TestUpstreamThatDies(UpstreamsTestCase):
    def setUp(self) -> None:
        super().setUp()
        # So that it is asked again as soon as it is back.
        self.enterContext(mock.patch.object(breaker, "_FIRST_SECONDS", 0.02))
        self.enterContext(mock.patch.object(breaker, "_LONGEST_SECONDS", 0.05))

    def test_every_question_is_answered_once_while_an_upstream_is_killed_and_restarted(self) -> None:
        turns = width(6, 20)
        port = self.enterContext(server_port())
        main, spare = FakeDeepSeek(responder=own_words, port=port), FakeDeepSeek(responder=own_words)
        main.start()
        self.enterContext(spare)
        proxy = self.behind(self.tables(main, spare), retry_budget=0)
        reached = [threading.Event() for _ in range(2)]
        revived: list[FakeDeepSeek] = []

        def chat(number: int) -> list[str]:
            history: list[dict[str, Any]] = []
            for turn in range(turns):
                history.append({"role": "user", "content": f"question {number}.{turn}"})
                body = {"messages": history, "tools": TOOLS, "stream": (number + turn) % 2 == 0}
                with socket.create_connection(proxy.address, timeout=MUCH_PATIENCE) as sock:
                    sock.sendall(request_bytes(body, key=f"sk-{number}"))
                    reply = read_reply(sock)
                text = reply.text if reply.status == 200 else ""
                if f"This answers question {number}.{turn}." != text:
                    # It broke in the middle of the answer, which is the client's to ask again.
                    history.pop()
                    continue
                history.append({"role": "assistant", "content": text})
                if number == 0 and turn in (turns // 3, 2 * turns // 3):
                    reached[turn // (turns // 2)].set()
            return [each["content"] for each in history if each["role"] == "assistant"]

        with ThreadPoolExecutor(CLIENTS) as pool:
            chats = [pool.submit(chat, number) for number in range(CLIENTS)]
            reached[0].wait(MUCH_PATIENCE)
            main.close()
            reached[1].wait(MUCH_PATIENCE)
            revived.append(self.enterContext(FakeDeepSeek(responder=own_words, port=port)))
            answers = [each.result(MUCH_PATIENCE) for each in chats]
        self.assertTrue(spare.accepted, "the chats went on elsewhere")
        self._check(answers, [main, spare, *revived], turns)
        # A new chat goes to the one that is back.
        before = len(revived[0].accepted)
        self.assertEqual(200, self.ask(proxy, "a new chat").status)
        self.assertEqual(before + 1, len(revived[0].accepted))

    def _check(self, answers: list[list[str]], fakes: list[FakeDeepSeek], turns: int) -> None:
        asked = Counter(question_of(payload) for fake in fakes for payload in fake.accepted)
        broken = 0
        for number, said in enumerate(answers):
            for turn in range(turns):
                text, calls = f"This answers question {number}.{turn}.", asked[f"question {number}.{turn}"]
                if text in said:
                    # Twice only if the first upstream died after it had accepted the call.
                    self.assertIn(calls, (1, 2))
                    self.assertEqual(1, said.count(text))
                    broken += calls - 1
                else:
                    broken += 1
        # Those that were in the middle of an answer when it died; of each client at most one.
        self.assertLessEqual(broken, CLIENTS)
        self.assertEqual([], [refused for fake in fakes for refused in fake.refused])
        for fake in fakes:
            for payload in fake.accepted:
                self._check_history(payload["messages"])

    def _check_history(self, messages: list[dict[str, Any]]) -> None:
        """Every turn has its own reasoning, whichever upstream gave it."""
        for question, answer in zip(messages[0::2], messages[1::2], strict=False):
            expected = f"Thinking of {question['content']}."
            self.assertEqual(expected, answer.get("reasoning_content"), json.dumps(messages)[:500])
