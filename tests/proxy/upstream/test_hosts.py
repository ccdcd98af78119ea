"""Other hosts of DeepSeek's models: reasoning comes and goes back in each host's own words, on every API."""

import logging
from typing import Any, ClassVar

from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import Answer, Call, Failure, FakeDeepSeek
from tests.fake_deepseek.dialects import DIALECTS
from tests.support.apis import CHAT, Api, ApiTestCase, each_form
from tests.support.harness import RawReply, RunningProxy
from tests.support.histories import TOOLS, tool_calls
from tests.support.raw_streams import streamed
from tests.support.width import some

THOUGHT = ' Look at\n\n  "a.py" first, \u2028then 思 decide.\n'
CALL = Call("call_00_abcdefghijklmnop123456", "read_file", '{"path":"a.py"}')
CALLING = Answer(reasoning=THOUGHT, content="Looking.", calls=(CALL,), piece=3)
QUESTION = {"role": "user", "content": "q"}
RESULT = {"role": "tool", "tool_call_id": CALL.id, "content": "ok"}
TURN = {"role": "assistant", "content": "Looking.", "tool_calls": tool_calls([CALL])}
CONSOLE = "deepseek_cursor_proxy.observers.console"


class HostTestCase(ApiTestCase):
    def at(self, host: str, store: ReasoningStore | None = None, **settings: Any) -> RunningProxy:
        self.fake = self.enterContext(FakeDeepSeek(host=host))
        settings = {"upstream_host": host, "upstream_model": "deepseek-ai/DeepSeek-V4-Pro", **settings}
        return self.proxy(store, **settings)

    def chat(self, proxy: RunningProxy, *history: dict[str, Any], **body: Any) -> RawReply:
        return super().chat(proxy, *history, **{"tools": TOOLS, **body})

    def assistant(self, request: int = -1) -> dict[str, Any]:
        return next(each for each in self.sent_body(request)["messages"] if each["role"] == "assistant")


def reasoning_of(reply: RawReply) -> str:
    """The reasoning that a chat client sees, which has one name."""
    if not reply.is_stream:
        message = reply.value["choices"][0]["message"]
        assert not {"reasoning", "reasoning_details"} & message.keys(), message
        return str(message["reasoning_content"])
    deltas = [choice["delta"] for chunk in reply.chunks for choice in chunk["choices"]]
    assert not any(delta.get("reasoning") or delta.get("reasoning_details") for delta in deltas), deltas
    return "".join(delta.get("reasoning_content") or "" for delta in deltas)


class TestEveryHost(HostTestCase):
    @each_form()
    def test_reasoning_comes_and_goes_back_on_every_api(self, api: Api, stream: bool) -> None:
        for host in some(DIALECTS if api is CHAT else sorted(DIALECTS.keys() - {"plain"}), 2):
            with self.subTest(host):
                proxy = self.at(host)
                if host == "plain":
                    # Its form is learned from the first answer.
                    self.ask(proxy, api)
                self.fake.answer(CALLING)
                history = [api.user("q2")]
                reply = self.ask(proxy, api, history, stream=stream)
                if api is CHAT:
                    self.assertEqual(THOUGHT, reasoning_of(reply))
                self.assertEqual((THOUGHT, "Looking."), (reply.said.reasoning, reply.said.text))
                history += [*reply.turn(keeps_thinking=False), *api.results([(CALL.id, "ok")])]
                self.ask(proxy, api, history, stream=stream)
                self.assertEqual([], self.fake.refused)
                self.assert_upstream_saw(THOUGHT)

    def test_thinking_is_switched_off_in_the_words_of_the_host(self) -> None:
        for host in DIALECTS.keys() - {"plain"}:
            with self.subTest(host):
                proxy = self.at(host, thinking="disabled", display_reasoning="off")
                self.fake.answer(CALLING)
                reply = self.chat(proxy, QUESTION)
                self.assertNotIn("reasoning_content", reply.value["choices"][0]["message"])

    def test_every_effort_is_one_that_the_host_has(self) -> None:
        for host in DIALECTS:
            proxy = self.at(host)
            for effort in some(("minimal", "low", "medium", "high", "xhigh", "max"), 2):
                with self.subTest(host, effort=effort):
                    self.chat(proxy, QUESTION, reasoning_effort=effort)

    def test_the_next_request_begins_with_the_bytes_of_the_last_one(self) -> None:
        for host in DIALECTS:
            with self.subTest(host):
                proxy = self.at(host, display_reasoning="off")
                self.chat(proxy, QUESTION)
                self.fake.answer(CALLING, Answer(reasoning="Fine.", content="Done."))
                self.chat(proxy, QUESTION)
                self.chat(proxy, QUESTION, TURN, RESULT)
                done = {"role": "assistant", "content": "Done."}
                self.chat(proxy, QUESTION, TURN, RESULT, done, {"role": "user", "content": "go on"})
                earlier, later = (seen.body.partition(b'"messages":[')[2] for seen in self.fake.seen[-2:])
                messages = earlier.rpartition(b'}],"')[0].partition(b'}],"tools"')[0]
                self.assertTrue(later.startswith(messages[: messages.rindex(b'{"role":"tool"')]), later)

    def test_a_field_of_deepseek_alone_is_not_sent_to_another_host(self) -> None:
        for host in DIALECTS:
            with self.subTest(host):
                proxy = self.at(host)
                self.chat(proxy, QUESTION, user_id="me")
                self.assertEqual("me", self.sent_body()["user"])


class TestDetails(HostTestCase):
    def test_reasoning_details_go_back_whole_and_in_order(self) -> None:
        proxy = self.at("openrouter")
        for stream, count in ((False, 2), (True, 1)):
            with self.subTest(stream=stream):
                self.fake.answer(CALLING)
                self.chat(proxy, {"role": "user", "content": f"q{count}"}, stream=stream)
                self.chat(proxy, {"role": "user", "content": f"q{count}"}, TURN, RESULT)
                details = self.assistant()["reasoning_details"]
                self.assertEqual(THOUGHT, "".join(each["text"] for each in details))
                self.assertEqual(list(range(len(details))), [each["index"] for each in details])
                self.assertNotIn("reasoning", self.assistant())

    def test_a_signature_that_comes_last_belongs_to_its_detail(self) -> None:
        proxy = self.at("openrouter")
        detail = {"type": "reasoning.text", "format": "x", "index": 0}
        self.fake.answer(
            streamed(
                {"reasoning": "a", "reasoning_details": [{**detail, "text": "a"}]},
                {"reasoning": "b", "reasoning_details": [{**detail, "text": "b"}]},
                {"content": "Hi.", "reasoning_details": [{**detail, "text": "", "signature": "s"}]},
            )
        )
        self.chat(proxy, QUESTION, stream=True)
        self.chat(proxy, QUESTION, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "go on"})
        self.assertEqual([{**detail, "text": "ab", "signature": "s"}], self.assistant()["reasoning_details"])

    def test_details_of_another_key_are_not_sent(self) -> None:
        proxy = self.at("openrouter")
        self.fake.answer(CALLING)
        self.chat(proxy, QUESTION)
        self.chat(proxy, QUESTION, {**TURN, "reasoning_content": THOUGHT}, RESULT, key="sk-of-another")
        self.assertNotIn("reasoning_details", self.assistant())


class TestLearnedForm(HostTestCase):
    def test_an_unknown_upstream_gets_reasoning_back_under_the_name_it_came_by(self) -> None:
        proxy = self.proxy()
        for name in ("reasoning", "reasoning_content", "reasoning"):
            with self.subTest(name):
                self.fake.answer(streamed({name: "Hm."}, {"content": f"By {name}."}))
                self.chat(proxy, QUESTION, stream=True)
                turn = {"role": "assistant", "content": f"By {name}."}
                self.fake.answer(streamed({"content": "Done."}))
                self.chat(proxy, QUESTION, turn, {"role": "user", "content": "go on"}, stream=True)
                self.assertEqual("Hm.", self.assistant()[name])

    def test_the_learned_form_survives_a_restart(self) -> None:
        for count in range(2):
            store = ReasoningStore(self.folder / "store.sqlite3")
            proxy = self.proxy(store)
            if not count:
                for _ in range(2):
                    self.fake.answer(streamed({"reasoning": "Hm."}, {"content": "Hi."}))
                    self.chat(proxy, QUESTION, stream=True)
                store.flush()
            else:
                self.fake.answer(streamed({"content": "Done."}))
                self.chat(proxy, QUESTION, {"role": "assistant", "content": "Hi."}, QUESTION, stream=True)
                self.assertEqual("Hm.", self.assistant()["reasoning"])

    def test_think_tags_are_learned_and_then_read_as_reasoning(self) -> None:
        proxy = self.proxy(display_reasoning="off")
        pieces = [{"content": piece} for piece in ("<th", "ink>Hm", ".</thi", "nk>\n", "\nHi.")]
        texts = []
        for _ in range(3):
            self.fake.answer(streamed(*pieces))
            reply = self.chat(proxy, QUESTION, stream=True)
            texts.append((reply.text, reasoning_of(reply)))
        self.assertEqual([*[("<think>Hm.</think>\n\nHi.", "")] * 2, ("Hi.", "Hm.")], texts)
        self.fake.answer(streamed({"content": "Done."}))
        self.chat(proxy, QUESTION, {"role": "assistant", "content": "Hi."}, QUESTION, stream=True)
        self.assertEqual("<think>Hm.</think>\n\nHi.", self.assistant()["content"])

    def test_answers_that_begin_with_a_tag_do_not_break_the_tool_turns_of_deepseek(self) -> None:
        for count in (1, 2, 3):
            with self.subTest(count):
                proxy = self.proxy(display_reasoning="off")
                for _ in range(count):
                    self.fake.answer(streamed({"content": "<think>x</think> is a tag."}))
                    self.chat(proxy, QUESTION, stream=True)
                for question in ("a", "b"):
                    asked = {"role": "user", "content": question}
                    self.fake.answer(CALLING)
                    self.assertEqual("Looking.", self.chat(proxy, asked).text)
                    self.chat(proxy, asked, TURN, RESULT)
                    self.assert_upstream_saw(THOUGHT)
                self.assertEqual([], self.fake.refused)

    def test_a_refusal_that_quotes_the_request_changes_nothing_for_others(self) -> None:
        proxy = self.proxy(display_reasoning="off")
        tagged = streamed({"content": "<think>Hm.</think>\n\nHi."})
        for _ in range(2):
            self.fake.answer(tagged)
            self.chat(proxy, QUESTION, stream=True)
        quoted = "no such value: 'The `reasoning_content` must be passed back to the API.'"
        other = {"role": "assistant", "content": "Ho."}
        for history in ([QUESTION], [QUESTION, other, QUESTION]):
            self.fake.answer(Failure(400, quoted), Failure(400, quoted), tagged)
            self.assertEqual(502, self.round_trip(proxy, {"messages": history}).status)
            reply = self.chat(proxy, QUESTION, stream=True)
            self.assertEqual(("Hi.", "Hm."), (reply.text, reasoning_of(reply)))

    def test_what_was_learned_wrongly_costs_one_refusal_at_most(self) -> None:
        for form in ("think", "none"):
            with self.subTest(form):
                self.fake.forget()
                store = ReasoningStore(self.folder / f"{form}.sqlite3")
                proxy = self.proxy(store, display_reasoning="off")
                with store.database.transaction() as connection:
                    connection.execute("INSERT INTO reasoning_forms VALUES (?, ?)", (self.fake.url, form))
                for question in ("a", "b", "c"):
                    asked = {"role": "user", "content": question}
                    self.assertEqual(200, self.chat(proxy, asked, TURN, RESULT).status)
                self.assertLessEqual(len(self.fake.refused), 1)

    def test_think_tags_in_the_text_of_a_host_with_reasoning_fields_stay_text(self) -> None:
        proxy = self.proxy(display_reasoning="off")
        for _ in range(3):
            self.fake.answer(Answer(reasoning="Hm.", content="<think>a</think> is a tag."))
            self.assertEqual("<think>a</think> is a tag.", self.chat(proxy, QUESTION).text)


class TestOddAnswers(HostTestCase):
    ODD: ClassVar = {
        "another name in mid-stream": ({"reasoning_content": "a"}, {"reasoning": "b"}, {"content": "Hi."}),
        "both names, one text": (
            {"reasoning_content": "a", "reasoning": "a"},
            {"reasoning_content": "b", "reasoning": "b"},
            {"content": "Hi."},
        ),
        "both names, one empty": ({"reasoning_content": "", "reasoning": "ab"}, {"content": "Hi.", "reasoning": None}),
        "both names, two texts": ({"reasoning_content": "ab", "reasoning": "A summary."}, {"content": "Hi."}),
        "reasoning after content": ({"reasoning": "a"}, {"content": "Hi."}, {"reasoning": "b"}),
        "details of another type": (
            {"reasoning_details": [{"type": "reasoning.summary", "summary": "a"}, "odd"]},
            {"reasoning_details": [{"type": "reasoning.text", "text": "b"}]},
            {"content": "Hi."},
        ),
        "a damaged name": ({"reasoning": {"x": 1}, "reasoning_content": "ab"}, {"content": "Hi."}),
    }

    def test_nothing_is_lost_and_nothing_doubled(self) -> None:
        for words, deltas in self.ODD.items():
            with self.subTest(words), self.assertLogs(CONSOLE):
                proxy = self.proxy(display_reasoning="off")
                self.fake.answer(streamed(*deltas))
                reply = self.chat(proxy, QUESTION, stream=True)
                self.assertEqual(("ab", "Hi."), (reasoning_of(reply), reply.text))
                self.fake.answer(streamed({"content": "Done."}))
                self.chat(proxy, QUESTION, {"role": "assistant", "content": "Hi."}, QUESTION, stream=True)
                turn = self.assistant()
                details = "".join(each.get("text") or each["summary"] for each in turn.get("reasoning_details", ()))
                self.assertEqual("ab", turn.get("reasoning_content") or turn.get("reasoning") or details)

    def test_mixed_names_are_logged_once(self) -> None:
        proxy = self.proxy()
        with self.assertLogs(CONSOLE, logging.WARNING) as logged:
            for words in ("another name in mid-stream", "both names, one text", "both names, two texts"):
                self.fake.answer(streamed(*self.ODD[words]))
                self.chat(proxy, QUESTION, stream=True)
        self.assertEqual(1, len(logged.records), logged.output)

    def test_an_answer_without_reasoning_does_not_count_as_one_without_thoughts(self) -> None:
        proxy = self.at("vllm")
        self.fake.answer(streamed({"content": "Hi."}))
        self.chat(proxy, QUESTION, stream=True)
        with self.assertLogs(CONSOLE, logging.INFO) as logged:
            self.chat(proxy, QUESTION, {"role": "assistant", "content": "Hi."}, QUESTION)
        self.assertIn("0 filled · 1 missing", "\n".join(logged.output))
        self.assertNotIn("reasoning", self.assistant())

    def test_an_unknown_host_that_sends_no_reasoning_is_not_said_to_think_nothing(self) -> None:
        called = {"tool_calls": [{"index": 0, **tool_calls([CALL])[0]}]}
        self.fake.answer(streamed({"content": "Looking."}, called))
        self.chat(self.running, QUESTION, stream=True)
        with self.assertLogs(CONSOLE, logging.INFO) as logged:
            self.fake.answer(streamed({"content": "Done."}))
            self.chat(self.running, QUESTION, TURN, RESULT, stream=True)
        self.assertIn("0 filled · 1 missing", "\n".join(logged.output))
        # Neither a transcript nor a filler: it does not insist on reasoning.
        self.assertEqual(["user", "assistant", "tool"], [each["role"] for each in self.sent_body()["messages"]])
        self.assertNotIn("reasoning_content", self.assistant())

    def test_once_it_sends_reasoning_it_is_treated_as_deepseek(self) -> None:
        self.fake.answer(streamed({"content": "Hi."}))
        self.chat(self.running, QUESTION, stream=True)
        self.fake.answer(CALLING)
        self.chat(self.running, {"role": "user", "content": "q2"})
        self.chat(self.running, {"role": "user", "content": "q2"}, TURN, RESULT)
        self.assert_upstream_saw(THOUGHT)
        self.fake.answer(streamed({"content": "Hi."}))
        self.chat(self.running, {"role": "user", "content": "q3"}, stream=True)
        with self.assertLogs(CONSOLE, logging.INFO) as logged:
            answer = {"role": "assistant", "content": "Hi."}
            self.chat(self.running, {"role": "user", "content": "q3"}, answer, QUESTION)
        self.assertIn("0 filled · 1 empty · 0 missing", "\n".join(logged.output))

    def test_lost_reasoning_of_a_tool_loop_is_no_reason_for_a_transcript_elsewhere(self) -> None:
        for host in DIALECTS:
            with self.subTest(host):
                self.chat(self.at(host), QUESTION, TURN, RESULT)
                self.assertEqual(["user", "assistant", "tool"], [each["role"] for each in self.sent_body()["messages"]])
                self.assert_upstream_saw(None)


class TestSettings(HostTestCase):
    def test_options_of_the_host_are_added_to_every_request(self) -> None:
        proxy = self.at("openrouter", host_options={"provider": {"only": ["deepseek"]}})
        for history in ([QUESTION], [QUESTION, TURN, RESULT]):
            self.chat(proxy, *history)
            self.assertEqual({"only": ["deepseek"]}, self.sent_body()["provider"])

    def test_a_name_with_slash_colon_and_version_reaches_the_host_as_it_is(self) -> None:
        proxy = self.at("openrouter", models={"sol/5.6:x": "deepseek/deepseek-v4-flash:nitro"})
        for requested, model in {
            "deepseek/deepseek-v4-pro:free": "deepseek/deepseek-v4-pro:free",
            "sol/5.6:x": "deepseek/deepseek-v4-flash:nitro",
            "deepseek-v4-pro": "deepseek-ai/DeepSeek-V4-Pro",
            "gpt-5": "deepseek-ai/DeepSeek-V4-Pro",
        }.items():
            with self.subTest(requested):
                self.chat(proxy, QUESTION, model=requested)
                self.assertEqual(model, self.sent_body()["model"])
