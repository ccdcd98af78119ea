import json
import unittest

from deepseek_cursor_proxy.conversation import CallPiece, Delta
from deepseek_cursor_proxy.protocols.tools import CustomCallUnwrapper, ToolNames, echoed_message, wrap_text
from tests.support.histories import assistant

PATCHER = "ApplyPatch"
NAMES = frozenset({PATCHER})
PATCH = '*** Begin Patch\n+say "hi"\n*** End Patch'


class TestWrap(unittest.TestCase):
    def test_wrapped_arguments_are_not_wrapped_again(self) -> None:
        for arguments in ('{"input": "x"}', '{"input":""}', wrap_text(PATCH)):
            self.assertEqual(arguments, wrap_text(arguments))

    def test_only_calls_of_custom_tools_are_wrapped(self) -> None:
        half = '{"path": "a'
        message = assistant("", ("a", "ApplyPatch", PATCH), ("b", "Read", half), ("c", "Read", "[]"), ("d", "Read", ""))
        found = [call.arguments for call in ToolNames(NAMES, {PATCHER, "Read"}).wrap_custom_calls(message).tool_calls]
        self.assertEqual([wrap_text(PATCH), half, "[]", ""], found)
        ordinary = assistant("", ("b", "Read", "{}"))
        self.assertEqual(ordinary, ToolNames(NAMES).wrap_custom_calls(ordinary))

    def test_free_text_is_wrapped_even_if_its_tool_is_gone(self) -> None:
        for text in (PATCH, "{ const files = 1 }", '{"half": ', "{" * 9, "[1, 2]", "42", "true", '"text"'):
            message = assistant("", ("a", PATCHER, text))
            gone = ToolNames(known={"Read"}).wrap_custom_calls(message)
            with self.subTest(text):
                self.assertEqual({"input": text}, json.loads(gone.tool_calls[0].arguments))
                self.assertEqual(ToolNames(NAMES, NAMES).wrap_custom_calls(message), gone)

    def test_calls_of_a_function_that_is_gone_keep_their_arguments(self) -> None:
        for arguments in ('{"path": "a"}', "{}", "", "null", "[]", '{"input": "x"}'):
            message = assistant("", ("a", "Read", arguments))
            self.assertEqual(message, ToolNames(known={PATCHER}).wrap_custom_calls(message))


class TestCustomCallUnwrapper(unittest.TestCase):
    def test_the_client_gets_the_text_of_a_custom_call_piece_by_piece(self) -> None:
        unwrapper = CustomCallUnwrapper(NAMES)
        pieces = [CallPiece(0, arguments=text) for text in ('{"inp', 'ut": "*** Be', "gin\\", 'n"', "}")]
        deltas = [Delta(calls=(piece,)) for piece in (CallPiece(0, "a", "ApplyPatch", ""), *pieces)]
        texts = [unwrapper.unwrap(delta).calls[0].arguments for delta in deltas]
        self.assertEqual(["", "", "*** Be", "gin", "\n", ""], texts)
        last = Delta(finish_reason="tool_calls")
        self.assertIs(last, unwrapper.unwrap(last))

    def test_other_arguments_of_a_custom_call_come_unchanged_at_the_end(self) -> None:
        for arguments in ('{"patch": "x"}', "[1]", PATCH):
            unwrapper = CustomCallUnwrapper(NAMES)
            first = unwrapper.unwrap(Delta(calls=(CallPiece(0, "a", "ApplyPatch", arguments),)))
            self.assertEqual("", first.calls[0].arguments)
            last = unwrapper.unwrap(Delta(finish_reason="tool_calls"))
            self.assertEqual((CallPiece(0, arguments=arguments),), last.calls)
            self.assertEqual((), unwrapper.unwrap(Delta(finish_reason="tool_calls")).calls)

    def test_custom_calls_of_two_choices_do_not_mix(self) -> None:
        unwrapper = CustomCallUnwrapper(NAMES)
        pieces = ((0, "ApplyPatch", '{"input":"a'), (1, "ApplyPatch", '{"input":"b'), (0, "", "c"))
        deltas = [Delta(choice=choice, calls=(CallPiece(0, "", name, piece),)) for choice, name, piece in pieces]
        self.assertEqual(["a", "b", "c"], [unwrapper.unwrap(delta).calls[0].arguments for delta in deltas])


class TestEchoedMessage(unittest.TestCase):
    def test_a_turn_with_custom_calls_is_stored_as_the_client_will_echo_it(self) -> None:
        """Whatever the model wrote: unwrapped for the client and wrapped again it is the same call."""
        whole = (
            json.dumps({"input": PATCH}, indent=2),
            json.dumps({"input": '{"input":"x"}'}),
            '{"input":"x","extra":1}',
        )
        halves = ('{"input": "half a pa', '{"input": "half\\u00')
        for arguments in (*whole, *halves, '{"patch":"x"}', "", "nonsense"):
            answer = assistant("", ("a", "ApplyPatch", arguments), ("b", "Read", '{"input": "x"}'))
            calls = tuple(CallPiece(at, *call) for at, call in enumerate(answer.tool_calls))
            unwrapped = CustomCallUnwrapper(NAMES).unwrap(Delta(calls=calls), is_whole=True).calls
            echoed = assistant("", *((each.id, each.name, each.arguments) for each in unwrapped))
            self.assertEqual(echoed_message(answer, NAMES), ToolNames(NAMES).wrap_custom_calls(echoed), arguments)
