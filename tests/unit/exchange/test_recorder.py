import unittest
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import CallPiece, Delta, Reply
from deepseek_cursor_proxy.deepseek.api import CHAT
from deepseek_cursor_proxy.exchange.exchange import TurnRecorder
from deepseek_cursor_proxy.protocols.request import parse
from deepseek_cursor_proxy.reasoning.identity import History
from deepseek_cursor_proxy.reasoning.restore import FoundTurns, prepare

REQUEST = parse({"messages": [{"role": "user", "content": "hi"}]}, ProxyConfig())
PREPARED = prepare(REQUEST, FoundTurns(REQUEST, History(b"m" * 32, REQUEST.messages), {}), "recover")


def attempt() -> Any:
    return mock.Mock(prepared=PREPARED, api=CHAT, request=REQUEST)


def call(arguments: str, index: int = 0) -> Delta:
    return Delta(calls=(CallPiece(index, f"call_{index}", "f", arguments),))


class TestTurnRecorder(unittest.TestCase):
    def setUp(self) -> None:
        self.store, self.reply = mock.Mock(), Reply()
        self.recorder = TurnRecorder(self.reply, self.store)

    def assert_stored(self, *reasonings: list[str]) -> None:
        calls = [call.args for call in self.store.record.call_args_list]
        self.assertEqual(list(reasonings), [[reasoning for _, reasoning in entries] for (entries,) in calls])

    def add(self, *deltas: Delta) -> None:
        for delta in deltas:
            self.reply.add(delta)
        self.recorder.record_complete(list(deltas), attempt())

    def test_a_turn_is_stored_once_when_it_ends(self) -> None:
        self.add(Delta(reasoning="Hm."))
        self.assert_stored()
        self.add(Delta(text="Yes.", finish_reason="stop"))
        self.add(Delta(usage={}))
        self.recorder.record_rest(attempt())
        self.assert_stored(["Hm."])

    def test_a_turn_is_stored_with_its_first_whole_call(self) -> None:
        self.add(Delta(reasoning="Hm."), call('{"a": {}'))
        self.assert_stored()
        self.add(call("}"))
        self.assert_stored(["Hm."])

    def test_a_turn_that_gets_nothing_behind_its_call_is_not_stored_again(self) -> None:
        self.add(Delta(reasoning="Hm."), call("{}"))
        self.add(Delta(finish_reason="tool_calls"))
        self.assert_stored(["Hm."])

    def test_reasoning_behind_a_call_is_stored_with_the_end(self) -> None:
        self.add(Delta(reasoning="Hm."), call("{}"))
        self.add(Delta(reasoning=" More."), Delta(finish_reason="tool_calls"))
        self.assert_stored(["Hm."], ["Hm. More."])

    def test_a_turn_that_was_cut_in_a_call_is_stored_with_and_without_it(self) -> None:
        self.reply.add(Delta(reasoning="Hm."))
        self.reply.add(call("{}"))
        self.reply.add(call('{"a"', 1))
        self.recorder.record_rest(attempt())
        self.assert_stored(["Hm."])
