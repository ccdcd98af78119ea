"""Which host the upstream is taken for, and what its answers teach."""

from typing import Any

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import Delta, OtherReasoning, Reply
from deepseek_cursor_proxy.deepseek.apis.api import CHAT
from deepseek_cursor_proxy.deepseek.hosts import ReasoningForm
from deepseek_cursor_proxy.exchange.upstreams import Upstream
from deepseek_cursor_proxy.storage.learned import ReasoningForms
from tests.support.databases import DatabaseTestCase

DETAIL = ({"type": "reasoning.text", "text": "r"},)
ANSWERS = {
    ReasoningForm.CONTENT: Delta(reasoning="r", text="a"),
    ReasoningForm.REASONING: Delta(reasoning="r", text="a", other_reasoning=OtherReasoning("reasoning")),
    ReasoningForm.DETAILS: Delta(reasoning="r", text="a", other_reasoning=OtherReasoning("reasoning_details", DETAIL)),
    ReasoningForm.THINK: Delta(text="<think>r</think>a"),
}


def reply(delta: Delta) -> Reply:
    whole = Reply()
    whole.add(delta)
    return whole


class TestReasoningForms(DatabaseTestCase):
    def upstream(self, **settings: Any) -> Upstream:
        config = ProxyConfig(**{"upstream_base_url": "http://127.0.0.1:1", **settings})
        return Upstream.from_settings(config, ReasoningForms(self.database))

    def test_deepseek_is_called_with_the_plain_api_and_teaches_nothing(self) -> None:
        upstream = self.upstream(upstream_base_url="https://api.deepseek.com")
        upstream.learn(reply(ANSWERS[ReasoningForm.REASONING]))
        self.assertIs(CHAT, upstream.chat_api())

    def test_options_do_not_change_what_the_host_is(self) -> None:
        upstream = self.upstream(upstream_base_url="https://api.deepseek.com", host_options={"x": 1})
        host = upstream.chat_api().host
        self.assertEqual(("deepseek", {"x": 1}, True), (host.name, dict(host.options), host.requires_reasoning))

    def test_an_unknown_host_has_the_form_of_its_answers(self) -> None:
        for name in ("auto", "plain"):
            for form, answer in ANSWERS.items():
                with self.subTest(name, form=form):
                    self.execute("DELETE FROM reasoning_forms")
                    upstream = self.upstream(upstream_host=name)
                    default = upstream.chat_api().host.form
                    upstream.learn(reply(answer))
                    # A field is used at once; what may be the model's text has to come twice.
                    is_doubtful = form is ReasoningForm.THINK and name == "auto"
                    self.assertIs(default if is_doubtful else form, upstream.chat_api().host.form)
                    upstream.learn(reply(answer))
                    self.assertIs(form, upstream.chat_api().host.form)
                    self.assertIs(form, self.upstream(upstream_host=name).chat_api().host.form)

    def test_only_reasoning_fields_unlearn_a_form(self) -> None:
        upstream = self.upstream()
        read = Delta(reasoning="r", text="a", other_reasoning=OtherReasoning("think"))
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
            upstream.learn(reply(answer))
            self.assertIs(form, upstream.chat_api().host.form)

    def test_tags_in_an_answer_that_has_no_thoughts_teach_nothing(self) -> None:
        upstream = self.upstream()
        for _ in range(3):
            upstream.learn(reply(ANSWERS[ReasoningForm.THINK]._replace(reasoning="")))
            upstream.learn(reply(ANSWERS[ReasoningForm.THINK]), has_thinking=False)
        self.assertIs(ReasoningForm.CONTENT, upstream.chat_api().host.form)

    def test_a_refusal_for_missing_reasoning_corrects_what_was_learned(self) -> None:
        for answer in (ANSWERS[ReasoningForm.THINK], Delta(text="a")):
            self.execute("DELETE FROM reasoning_forms")
            upstream = self.upstream()
            for _ in range(2):
                upstream.learn(reply(answer))
            self.assertFalse(upstream.chat_api().host.requires_reasoning)
            upstream.learn(reply(Delta(text="a")), was_transcript=True)
            self.assertTrue(upstream.chat_api().host.requires_reasoning)

    def test_a_host_with_a_name_keeps_its_form(self) -> None:
        upstream = self.upstream(upstream_host="vllm")
        upstream.learn(reply(ANSWERS[ReasoningForm.DETAILS]))
        self.assertIs(ReasoningForm.REASONING, upstream.chat_api().host.form)

    def test_an_unknown_host_is_as_strict_as_deepseek_until_it_shows_another_form(self) -> None:
        upstream = self.upstream()
        self.assertTrue(upstream.chat_api().host.requires_reasoning)
        upstream.learn(reply(ANSWERS[ReasoningForm.REASONING]))
        self.assertFalse(upstream.chat_api().host.requires_reasoning)

    def test_who_gets_tools_that_deepseek_runs_itself(self) -> None:
        for host, is_sent in (("deepseek", True), ("auto", True), ("plain", False), ("vllm", False), ("ark", False)):
            with self.subTest(host):
                self.assertIs(is_sent, self.upstream(upstream_host=host).runs_server_tools)
        upstream = self.upstream()
        upstream.learn(reply(ANSWERS[ReasoningForm.REASONING]))
        self.assertFalse(upstream.runs_server_tools)

    def test_an_unknown_host_without_reasoning_gets_no_fillers_until_it_sends_some(self) -> None:
        upstream = self.upstream()
        before = upstream.chat_api().host
        self.assertEqual((True, False), (before.requires_reasoning, before.silence_means_no_thinking))
        silent = Delta(text="a")
        for answer, has_thinking in ((silent, False), (Delta(text="a", reasoning=""), True)):
            upstream.learn(reply(answer), has_thinking=has_thinking)
            self.assertEqual(before, upstream.chat_api().host, "it was not asked to think, or said that it did not")
        upstream.learn(reply(silent))
        learned = upstream.chat_api().host
        self.assertEqual((False, False), (learned.requires_reasoning, learned.silence_means_no_thinking))
        upstream.learn(reply(ANSWERS[ReasoningForm.CONTENT]))
        after = upstream.chat_api().host
        self.assertEqual((True, True), (after.requires_reasoning, after.silence_means_no_thinking))
        upstream.learn(reply(silent))
        self.assertEqual(after, upstream.chat_api().host)
