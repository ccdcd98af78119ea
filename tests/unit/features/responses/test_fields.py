import unittest
from typing import Any

from deepseek_cursor_proxy.features.responses import fields
from deepseek_cursor_proxy.features.responses.fields import Frame, ResponseOptions, state
from deepseek_cursor_proxy.protocols.input_items import OWN_ID
from tests.support.bad_requests import assert_named

MARK = "0123456789abcdef" * 2
QUESTION = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]}


class TestOptions(unittest.TestCase):
    def test_a_responses_body_without_options_gets_the_defaults(self) -> None:
        self.assertEqual(ResponseOptions((QUESTION,)), fields.parse_options({"input": "q"}))
        self.assertEqual(ResponseOptions(()), fields.parse_options({}))

    def test_a_null_responses_option_counts_as_absent(self) -> None:
        names = "store background stream previous_response_id include metadata reasoning text conversation prompt"
        body = {"input": "q", "messages": None, **dict.fromkeys(names.split())}
        self.assertEqual(ResponseOptions((QUESTION,)), fields.parse_options(body))

    def test_responses_options_are_read_from_the_body(self) -> None:
        body = {"input": [QUESTION], "store": False, "stream": True, "previous_response_id": "resp_1"}
        body |= {"reasoning": {"summary": "auto"}, "text": {"format": {"type": "json_schema"}}}
        body["include"] = ["message.output_text.logprobs", "reasoning.encrypted_content"]
        options = {"sealed": True, "summary": "auto", "json": True, "logprobs": True}
        expected = ResponseOptions((QUESTION,), False, False, True, "resp_1", **options)  # type: ignore[arg-type]
        self.assertEqual(expected, fields.parse_options(body))
        self.assertIsNone(fields.parse_options({"reasoning": {"summary": "none"}}).summary)

    def test_a_bad_responses_option_is_a_400_that_names_it(self) -> None:
        rows = (
            ("store", {"store": "yes"}, {"store": 1}),
            ("background", {"background": 0}, {"background": True, "store": False}),
            ("metadata.a", {"metadata": {"a": 1}}), ("reasoning.summary", {"reasoning": {"summary": 7}}),
            ("text.format", {"text": {"format": "json"}}), ("input", {"input": 7}, {"input": {}}),
            ("input[1]", {"input": [QUESTION, "q"]}),
        )  # fmt: skip
        one_value = {"stream": "true", "previous_response_id": 7, "include": "reasoning.encrypted_content"}
        one_value |= {"metadata": [], "parallel_tool_calls": "yes", "max_tool_calls": "7", "safety_identifier": 7}
        one_value |= {"reasoning": "high", "text": "json", "conversation": "conv_1", "prompt": {"id": "p"}}
        one_value["messages"] = []
        single = ((name, {name: value}) for name, value in one_value.items())
        assert_named(self, fields.parse_options, "", *rows, *single)


class TestConversation(unittest.TestCase):
    def test_options_of_the_responses_envelope_are_not_sent_to_deepseek(self) -> None:
        around = dict.fromkeys(("store", "background", "include", "metadata", "truncation", "service_tier"), "x")
        inside = {"model": "m", "temperature": 1, "tools": []}
        found = fields.chat_body({**around, **inside, "input": "q"}, [QUESTION])
        self.assertEqual({**inside, "input": [QUESTION]}, found)


class TestItemPlaces(unittest.TestCase):
    def test_a_foreign_item_id_names_no_response(self) -> None:
        for item_id in ("", "msg_1", f"msg_{MARK}", f"msg_{MARK}_x", f"msg_{MARK}_1\n", f"msg_{MARK}_1234567"):
            self.assertIsNone(OWN_ID.fullmatch(item_id), item_id)


class TestResponseObject(unittest.TestCase):
    def test_a_response_object_has_every_field_of_the_official_type(self) -> None:
        frame = Frame(MARK, 1, "m", ResponseOptions(()), fields.echoed_fields({}))
        found = frame.response(state("queued"))
        names = (
            "access_programs background billing completed_at conversation created_at error frequency_penalty id "
            "incomplete_details instructions max_output_tokens max_tool_calls metadata model moderation object output "
            "output_text parallel_tool_calls presence_penalty previous_response_id prompt prompt_cache_key "
            "prompt_cache_retention reasoning safety_identifier service_tier status store temperature text tool_choice "
            "tools top_logprobs top_p truncation usage user"
        )
        self.assertEqual(set(names.split()), set(found))

    def test_usage_gets_the_names_of_the_responses_api(self) -> None:
        chat = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        chat |= {"prompt_tokens_details": {"cached_tokens": 8}, "completion_tokens_details": {"reasoning_tokens": 3}}
        expected = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
        expected["input_tokens_details"] = {"cached_tokens": 8, "cache_write_tokens": 0}
        expected["output_tokens_details"] = {"reasoning_tokens": 3}
        self.assertEqual(expected, fields.usage(chat))

    def test_damaged_usage_is_reported_as_far_as_it_is_valid(self) -> None:
        self.assertIsNone(fields.usage(None))
        odd: tuple[dict[str, Any], ...] = ({}, {"prompt_tokens": "7", "prompt_tokens_details": 7}, {"total_tokens": -1})
        for usage in odd:
            found = fields.usage(usage)
            assert found is not None
            self.assertEqual((0, 0, 0), (found["input_tokens"], found["output_tokens"], found["total_tokens"]))
        found = fields.usage({"prompt_tokens": 2, "completion_tokens": 3})
        assert found is not None
        self.assertEqual(5, found["total_tokens"])
