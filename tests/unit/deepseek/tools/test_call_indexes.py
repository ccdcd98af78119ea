"""Indexes of calls that a host numbers badly."""

import unittest

from deepseek_cursor_proxy.conversation import CallPiece, Delta
from deepseek_cursor_proxy.deepseek.tools.call_indexes import CallIndexes


def assign(*pieces: CallPiece, choice: int = 0, indexes: CallIndexes | None = None) -> list[int]:
    known = indexes or CallIndexes()
    return [known.assign(Delta(choice, calls=(piece,)), "delta").calls[0].index for piece in pieces]


class TestCallIndexes(unittest.TestCase):
    def test_good_indexes_pass_unchanged(self) -> None:
        delta = Delta(calls=(CallPiece(0, "a", "f"), CallPiece(1, "b", "f")))
        self.assertIs(delta, CallIndexes().assign(delta, "delta"))

    def test_a_piece_with_another_id_and_a_name_begins_a_call(self) -> None:
        a, b = CallPiece(0, "a", "f"), CallPiece(0, "b", "f")
        self.assertEqual([0, 0, 1, 1, 2], assign(a, CallPiece(0), b, CallPiece(0), CallPiece(0, "c", "f")))

    def test_a_repeated_or_late_id_continues_the_call(self) -> None:
        a = CallPiece(0, "a", "f")
        self.assertEqual([0, 0, 0], assign(a, a, CallPiece(0, "other id", "")))
        self.assertEqual([0, 0, 1], assign(CallPiece(0, "", "f"), a, CallPiece(0, "b", "f")))

    def test_choices_are_counted_apart(self) -> None:
        indexes = CallIndexes()
        self.assertEqual([0], assign(CallPiece(0, "a", "f"), indexes=indexes))
        self.assertEqual([0], assign(CallPiece(0, "b", "f"), choice=1, indexes=indexes))
