import itertools
import random
import time
import unittest

from deepseek_cursor_proxy.conversation import ChatRequest, Message, pack_items
from deepseek_cursor_proxy.deepseek import chat_api
from deepseek_cursor_proxy.deepseek.history_repair import CANCELLED, repair, use_template_roles
from deepseek_cursor_proxy.deepseek.hosts import DEEPSEEK
from tests.fake_deepseek import contract
from tests.support.histories import TOOLS, assistant, new_chat, result, system, user


def calls(*ids: str, text: str = "") -> Message:
    return assistant(text, *((each, "read_file", "{}") for each in ids))


def shape(messages: tuple[Message, ...]) -> str:
    """A history in one line: the letters of the roles with ids of calls or text; X is what CANCELLED says."""
    texts = [f"{m.tool_call_id}={m.content}" if m.role == "tool" else m.content for m in messages]
    calls = [",".join(call.id for call in m.tool_calls) for m in messages]
    words = [f"{m.role[0]}:{ids or text}" for m, ids, text in zip(messages, calls, texts, strict=True)]
    return " ".join(words).replace(CANCELLED, "X")


U, U2, A = user("u"), user("u2"), assistant("a", reasoning="r")


class TestRepair(unittest.TestCase):
    def test_a_turn_with_nothing_but_a_search_is_not_empty(self) -> None:
        search = Message("assistant", "", server_items=pack_items("responses", [{"type": "web_search_call"}]))
        for chat in ((U, search, U2), (U, calls("1"), search, U2)):
            self.assertIn(search, repair(chat).messages)
            self.assertNotIn("empty dropped", repair(chat).repairs)

    def test_each_kind_of_damage_gets_its_repair(self) -> None:
        x, y, x2, y2, empty = result("1", "x"), result("1", "y"), result("2", "x"), result("2", "y"), assistant()
        unnamed = (result("", "x"), result("", "y"))
        for name, history, expected, repairs in (
            ("nothing", (U, calls("1"), x, A), "u:u a:1 t:1=x a:a", {}),
            ("stopped", (U, calls("1"), U2), "u:u a:1 t:1=X u:u2", {"cancelled": 1}),
            ("at the end", (U, calls("1")), "u:u a:1 t:1=X", {"cancelled": 1}),
            ("partly answered", (calls("1", "2", "3"), x2, U), "a:1,2,3 t:1=X t:2=x t:3=X u:u", {"cancelled": 2}),
            ("answered in another order", (calls("1", "2"), y2, x), "a:1,2 t:2=y t:1=x", {}),
            ("behind a question", (calls("1"), U, x, A), "a:1 t:1=x u:u a:a", {"moved": 1}),
            ("behind a reminder", (calls("1", "2"), x, system("s"), y2), "a:1,2 t:1=x t:2=y s:s", {"moved": 1}),
            ("behind the next answer", (calls("1"), U, A, x), "a:1 t:1=X u:u a:a u:[result of tool call 1]\nx",
             {"cancelled": 1, "orphaned": 1}),
            ("behind the next calls, which answer the user", (calls("1"), U, calls("2"), x2, x),
             "a:1 t:1=X u:u a:2 t:2=x u:[result of tool call 1]\nx", {"cancelled": 1, "orphaned": 1}),
            ("twice", (calls("1"), x, x), "a:1 t:1=x", {"repeated": 1}),
            ("twice, differing", (calls("1"), x, y), "a:1 t:1=x u:[result of tool call 1]\ny", {"orphaned": 1}),
            ("of nobody's call", (U, x2, A), "u:u u:[result of tool call 2]\nx a:a", {"orphaned": 1}),
            ("without ids", (U, calls("", ""), *unnamed), "u:u a:call_1_0,call_1_1 t:call_1_0=x t:call_1_1=y",
             {"ids given": 2}),
            ("one id for two calls", (calls("1", "1"), x, y), "a:1,call_0_1 t:1=x t:call_0_1=y", {"ids given": 1}),
            ("ids that come again in the next turn", (calls("1"), x, calls("1"), y), "a:1 t:1=x a:1 t:1=y", {}),
            ("one turn split by calls", (calls("1"), calls("2"), x, y2, U), "a:1 t:1=x a:2 t:2=y u:u", {"moved": 1}),
            ("behind an assistant that says nothing", (calls("1"), empty, x), "a:1 t:1=x", {"empty dropped": 1}),
            ("an id that is also the name of a place",
             (U, calls("call_1_1", ""), result("call_1_1", "x"), result("", "y")),
             "u:u a:call_1_1,call_1_1_ t:call_1_1=x t:call_1_1_=y", {"ids given": 1}),
            ("a later id that is the name of a place", (U, calls("", "call_1_0"), *unnamed),
             "u:u a:call_1_0_,call_1_0 t:call_1_0_=x t:call_1_0=y", {"ids given": 1}),
            ("an assistant that says nothing", (U, empty, U2), "u:u u:u2", {"empty dropped": 1}),
            ("nobody else", (empty,), "a:", {}),
            ("one that only thought", (U, assistant(reasoning="r")), "u:u a:", {}),
        ):  # fmt: skip
            with self.subTest(name):
                repaired = repair(history)
                self.assertEqual(expected, shape(repaired.messages))
                self.assertEqual(repairs, repaired.repairs)
                self.assertEqual(len(repaired.messages), len(repaired.origins))

    def test_a_prompt_that_was_the_last_message_is_a_prompt_again_once_a_question_follows(self) -> None:
        memory, prompts = new_chat(), (system("s"), system("s2"))
        roles = []
        for messages in (prompts, (*prompts, U)):
            request = ChatRequest("deepseek-v4-pro", "deepseek-v4-pro", messages)
            roles.append([message.role for message in use_template_roles(request, DEEPSEEK, memory).messages])
        self.assertEqual([["system", "user"], ["system", "system", "user"]], roles)

    def test_any_history_is_repaired_to_one_that_deepseek_accepts(self) -> None:
        for seed in range(600):
            history = generated(random.Random(seed))
            self.assertIsNone(refusal(repair(history).messages), (seed, shape(history)))

    def test_a_repair_loses_no_text_of_the_client(self) -> None:
        for seed in range(300):
            history = generated(random.Random(seed))
            text = "".join(str(message.content) for message in repair(history).messages)
            for message in history:
                self.assertIn(str(message.content), text, (seed, shape(history)))

    def test_a_repaired_history_keeps_its_prefix_when_the_chat_grows(self) -> None:
        """DeepSeek's cache needs the prefix."""
        for seed in range(300):
            history = generated(random.Random(seed))
            answered = [*history, assistant("the answer", reasoning="r")]
            sent = repair(history).messages
            for more in ((U,), (U2, calls("7"), result("7"))):
                with self.subTest(seed=seed, history=shape(history)):
                    later = repair([*answered, *more]).messages
                    self.assertEqual(sent, later[: len(sent)])

    def test_calls_and_results_that_do_not_fit_are_repaired_in_linear_time(self) -> None:
        """Half a megabyte of these once took seconds."""
        rounds = [calls(str(number)) for number in range(2_000)]
        strangers = [result(f"x{number}", "?") for number in range(2_000)]
        same = [calls("1")] * 2_000 + [result("1", str(number)) for number in range(2_000)]
        began = time.thread_time()
        for history in ([*rounds, *strangers], [*rounds, *strangers, *map(result, map(str, range(2_000)))], same):
            self.assertLessEqual(4_000, len(repair(history).messages))
        self.assertLess(time.thread_time() - began, 2)


def generated(rng: random.Random) -> tuple[Message, ...]:
    """Messages in any order, with ids that are repeated, missing or of no call."""
    ids = ("1", "2", "3", "", "call_1_0")
    numbers = itertools.count()
    makers = (
        lambda: user(f"u{next(numbers)}"),
        lambda: system(f"s{next(numbers)}"),
        lambda: assistant(f"a{next(numbers)}", reasoning="r"),
        lambda: assistant(),
        lambda: assistant(
            "", *((rng.choice(ids), "read_file", "{}") for _ in range(rng.randrange(1, 4))), reasoning="r"
        ),
        lambda: result(rng.choice(ids), f"t{next(numbers)}"),
        lambda: result(rng.choice(ids), f"t{next(numbers)}"),
    )
    return (user("start"), *(rng.choice(makers)() for _ in range(rng.randrange(12))))


def refusal(messages: tuple[Message, ...]) -> object:
    request = ChatRequest("deepseek-v4-pro", "deepseek-v4-pro", messages, tuple(TOOLS))
    return contract.refusal(chat_api.payload(use_template_roles(request, DEEPSEEK)))
