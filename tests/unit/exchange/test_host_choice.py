"""Which host the upstream is taken for, and what its answers teach."""

from typing import Any

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import ChatRequest, Delta, ForeignReasoning, Reply
from deepseek_cursor_proxy.deepseek import hosts
from deepseek_cursor_proxy.deepseek.apis.api import CHAT
from deepseek_cursor_proxy.deepseek.hosts import ReasoningForm
from deepseek_cursor_proxy.exchange.host_choice import HostChoice
from deepseek_cursor_proxy.exchange.upstreams import Upstream
from deepseek_cursor_proxy.storage.learned import ReasoningForms
from tests.support.databases import DatabaseTestCase

DETAIL = ({"type": "reasoning.text", "text": "r"},)
ANSWERS = {
    ReasoningForm.CONTENT: Delta(reasoning="r", text="a"),
    ReasoningForm.REASONING: Delta(reasoning="r", text="a", foreign=ForeignReasoning("reasoning")),
    ReasoningForm.DETAILS: Delta(reasoning="r", text="a", foreign=ForeignReasoning("reasoning_details", DETAIL)),
    ReasoningForm.THINK: Delta(text="<think>r</think>a"),
}


def reply(delta: Delta) -> Reply:
    whole = Reply()
    whole.add(delta)
    return whole


class TestHostChoice(DatabaseTestCase):
    def choice(self, **settings: Any) -> HostChoice:
        config = ProxyConfig(**{"upstream_base_url": "http://127.0.0.1:1", **settings})
        return Upstream.of_settings(config, ReasoningForms(self.database)).host_choice

    def test_deepseek_is_called_with_the_plain_api_and_teaches_nothing(self) -> None:
        choice = self.choice(upstream_base_url="https://api.deepseek.com")
        choice.learn(reply(ANSWERS[ReasoningForm.REASONING]))
        self.assertIs(CHAT, choice.chat_api())

    def test_options_do_not_change_what_the_host_is(self) -> None:
        choice = self.choice(upstream_base_url="https://api.deepseek.com", host_options={"x": 1})
        host = choice.chat_api().host
        self.assertEqual(("deepseek", {"x": 1}, True), (host.name, dict(host.options), host.requires_reasoning))

    def test_an_unknown_host_has_the_form_of_its_answers(self) -> None:
        for name in ("auto", "plain"):
            for form, answer in ANSWERS.items():
                with self.subTest(name, form=form):
                    self.execute("DELETE FROM reasoning_forms")
                    choice = self.choice(upstream_host=name)
                    default = choice.chat_api().host.form
                    choice.learn(reply(answer))
                    # A field is used at once; what may be the model's text has to come twice.
                    is_doubtful = form is ReasoningForm.THINK and name == "auto"
                    self.assertIs(default if is_doubtful else form, choice.chat_api().host.form)
                    choice.learn(reply(answer))
                    self.assertIs(form, choice.chat_api().host.form)
                    self.assertIs(form, self.choice(upstream_host=name).chat_api().host.form)

    def test_only_reasoning_fields_unlearn_a_form(self) -> None:
        choice = self.choice()
        read = Delta(reasoning="r", text="a", foreign=ForeignReasoning("think"))
        for answer, form in (
            (ANSWERS[ReasoningForm.THINK], ReasoningForm.CONTENT),
            (Delta(text="a"), ReasoningForm.CONTENT),
            (ANSWERS[ReasoningForm.THINK], ReasoningForm.CONTENT),
            (ANSWERS[ReasoningForm.THINK], ReasoningForm.THINK),
            (Delta(text="a"), ReasoningForm.THINK),
            (read, ReasoningForm.THINK),
            (ANSWERS[ReasoningForm.REASONING], ReasoningForm.REASONING),
            (ANSWERS[ReasoningForm.THINK], ReasoningForm.REASONING),
            (ANSWERS[ReasoningForm.THINK], ReasoningForm.REASONING),
            (ANSWERS[ReasoningForm.CONTENT], ReasoningForm.CONTENT),
        ):
            choice.learn(reply(answer))
            self.assertIs(form, choice.chat_api().host.form)

    def test_a_confirmed_field_yields_to_another_only_when_that_comes_twice(self) -> None:
        choice = self.choice()
        for form, after in (
            (ReasoningForm.CONTENT, ReasoningForm.CONTENT),
            (ReasoningForm.CONTENT, ReasoningForm.CONTENT),
            (ReasoningForm.REASONING, ReasoningForm.CONTENT),
            (ReasoningForm.CONTENT, ReasoningForm.CONTENT),
            (ReasoningForm.REASONING, ReasoningForm.CONTENT),
            (ReasoningForm.REASONING, ReasoningForm.REASONING),
        ):
            choice.learn(reply(ANSWERS[form]))
            self.assertIs(after, choice.chat_api().host.form)

    def test_tags_in_an_answer_that_has_no_thoughts_teach_nothing(self) -> None:
        choice = self.choice()
        for _ in range(3):
            choice.learn(reply(ANSWERS[ReasoningForm.THINK]._replace(reasoning="")))
            choice.learn(reply(ANSWERS[ReasoningForm.THINK]), has_thinking=False)
        self.assertIs(ReasoningForm.CONTENT, choice.chat_api().host.form)

    def test_a_refusal_for_missing_reasoning_corrects_what_was_learned(self) -> None:
        for answer in (ANSWERS[ReasoningForm.THINK], Delta(text="a")):
            self.execute("DELETE FROM reasoning_forms")
            choice = self.choice()
            for _ in range(2):
                choice.learn(reply(answer))
            self.assertFalse(choice.chat_api().host.requires_reasoning)
            choice.learn(reply(Delta(text="a")), was_transcript=True)
            self.assertTrue(choice.chat_api().host.requires_reasoning)

    def test_a_host_with_a_name_keeps_its_form(self) -> None:
        choice = self.choice(upstream_host="vllm")
        choice.learn(reply(ANSWERS[ReasoningForm.DETAILS]))
        self.assertIs(ReasoningForm.REASONING, choice.chat_api().host.form)

    def test_an_unknown_host_is_as_strict_as_deepseek_until_it_shows_another_form(self) -> None:
        choice = self.choice()
        self.assertTrue(choice.chat_api().host.requires_reasoning)
        choice.learn(reply(ANSWERS[ReasoningForm.REASONING]))
        self.assertFalse(choice.chat_api().host.requires_reasoning)

    def test_who_gets_tools_that_deepseek_runs_itself(self) -> None:
        request, other = ChatRequest("m", "flash", ()), ChatRequest("m", "pro", ())
        me, you = b"me", b"you"
        for host, is_sent in (("deepseek", True), ("auto", True), ("plain", False), ("vllm", False), ("ark", False)):
            with self.subTest(host):
                self.assertIs(is_sent, self.choice(upstream_host=host).runs_server_tools(CHAT, request, me))
        choice = self.choice()
        choice.record_refused_tools(CHAT, request, me)
        self.assertEqual([False, True], [choice.runs_server_tools(CHAT, each, me) for each in (request, other)])
        self.assertTrue(choice.runs_server_tools(CHAT, request, you))
        choice.learn(reply(ANSWERS[ReasoningForm.REASONING]))
        self.assertFalse(choice.runs_server_tools(CHAT, other, me))

    def test_refused_tools_are_remembered_for_a_time_with_their_settings(self) -> None:
        now = [0.0]
        choice = HostChoice(hosts.UNKNOWN, "http://127.0.0.1:1", ReasoningForms(self.database), lambda: now[0])
        bad, good = ({"type": "web_search", "max_uses": uses} for uses in (-1, 5))
        request = ChatRequest("m", "flash", (), server_tools=(bad,))
        choice.record_refused_tools(CHAT, request, b"me")
        self.assertFalse(choice.runs_server_tools(CHAT, request, b"me"))
        self.assertTrue(choice.runs_server_tools(CHAT, request._replace(server_tools=(good,)), b"me"))
        now[0] = 601.0
        self.assertTrue(choice.runs_server_tools(CHAT, request, b"me"))
        for number in range(5000):
            choice.record_refused_tools(CHAT, request._replace(model=str(number)), b"me")
        self.assertLessEqual(len(choice._refused), 256)

    def test_an_unreadable_form_in_the_file_is_ignored(self) -> None:
        self.execute("INSERT INTO reasoning_forms VALUES ('http://127.0.0.1:1', 'nonsense')")
        self.assertIs(ReasoningForm.CONTENT, self.choice().chat_api().host.form)

    def test_an_unknown_host_without_reasoning_gets_no_fillers_until_it_sends_some(self) -> None:
        choice = self.choice()
        before = choice.chat_api().host
        self.assertEqual((True, False), (before.requires_reasoning, before.absence_means_none))
        silent = Delta(text="a")
        for answer, has_thinking in ((silent, False), (Delta(text="a", reasoning=""), True)):
            choice.learn(reply(answer), has_thinking=has_thinking)
            self.assertEqual(before, choice.chat_api().host, "it was not asked to think, or said that it did not")
        choice.learn(reply(silent))
        learned = choice.chat_api().host
        self.assertEqual((False, False), (learned.requires_reasoning, learned.absence_means_none))
        choice.learn(reply(ANSWERS[ReasoningForm.CONTENT]))
        after = choice.chat_api().host
        self.assertEqual((True, True), (after.requires_reasoning, after.absence_means_none))
        choice.learn(reply(silent))
        self.assertEqual(after, choice.chat_api().host)
