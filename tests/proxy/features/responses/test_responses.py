"""Responses over real sockets: created, chained, retrieved, deleted; each caller sees only its own."""

import contextlib
import functools
import json
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.features.responses.feature import Responses
from deepseek_cursor_proxy.protocols import input_items
from tests.fake_deepseek import Answer, Call, FakeDeepSeek
from tests.proxy.features.responses.test_background import BackgroundTestCase, dechunked
from tests.support.features import needs
from tests.support.harness import PATIENCE, RunningProxy, read_until
from tests.support.histories import tool_calls
from tests.support.polling import eventually
from tests.support.responses_client import (
    HOSTED,
    OPAQUE,
    PATH,
    TOOLS,
    Json,
    ResponsesTestCase,
    check_stream,
    events,
    kinds,
    output,
    question,
)
from tests.support.threads import run_at_once
from tests.support.width import width

CALL = Call("call_00_a1B2c3D4e5F6g7H8i9J0", "read_file", '{"path": "a.py"}')
OTHER_CALL = Call("call_01_k1L2m3N4o5P6q7R8s9T0", "read_file", '{"path": "b.py"}')
CALLING = Answer(reasoning="First look.", content="Looking.", calls=(CALL, OTHER_CALL))
DONE = Answer(reasoning="Now I know.", content="Done.")
RESULTS = [output(CALL.id), output(OTHER_CALL.id)]


class TestResponses(ResponsesTestCase):
    def test_a_response_echoes_the_fields_of_its_request(self) -> None:
        request = {
            "instructions": "Be brief.", "max_output_tokens": 2000, "metadata": {"a": "b"}, "model": "my-model",
            "parallel_tool_calls": False, "prompt_cache_key": "thread", "temperature": 0.5, "tool_choice": "auto",
            "tools": TOOLS, "top_p": 0.5, "user": "me",
        }  # fmt: skip
        answer = self.complete(self.proxy(), "q", **request, reasoning={"effort": "low", "summary": "auto"})
        self.assertEqual(request, {name: answer[name] for name in request})
        self.assertEqual({"effort": "low", "summary": "auto"}, answer["reasoning"])
        told = [answer[name] for name in ("object", "background", "store", "truncation", "error", "text")]
        self.assertEqual(["response", False, True, "disabled", None, {"format": {"type": "text"}}], told)
        self.assertEqual(2000, self.fake.accepted[-1]["max_tokens"])

    def test_a_response_cut_by_its_limit_is_incomplete(self) -> None:
        self.fake.answer(*[Answer(reasoning="Hm.", content="Half", finish_reason="length")] * 2)
        for stream in (True, False):
            answer = self.create(self.running, "q", stream=stream).response
            self.assertEqual(("incomplete", "Half"), (answer["status"], answer["output_text"]))
            self.assertEqual({"reason": "max_output_tokens"}, answer["incomplete_details"])
            self.assertEqual(answer, self.get(self.running, answer).value)

    def test_a_response_with_invalid_json_output_fails(self) -> None:
        schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
        for text, form, status in (
            ('{"a": 1}', {"type": "json_object"}, "completed"), ("a: 1", {"type": "json_object"}, "failed"),
            ('{"a": 1}', schema, "completed"), ("a: 1", {"type": "text"}, "completed"),
        ):  # fmt: skip
            with self.subTest(text, form=form["type"]):
                self.fake.answer(Answer(reasoning="Hm.", content=text))
                answer = self.create(self.proxy(), "Give me JSON.", text={"format": form}, stream=True).response
                self.assertEqual(status, answer["status"])
                if status == "failed":
                    self.assertEqual("server_error", answer["error"]["code"])

    def test_recovered_reasoning_adds_no_notice_to_json_output(self) -> None:
        call = {"type": "function_call", "call_id": "call_1", "name": "read_file", "arguments": "{}"}
        lost = [question("q"), call, output("call_1"), question("Tell me as JSON.")]
        for stream in (True, False):
            self.fake.answer(Answer(reasoning="Hm.", content='{"a": 1}'))
            answer = self.complete(
                self.running, lost, tools=TOOLS, stream=stream, text={"format": {"type": "json_object"}}
            )
            self.assertEqual('{"a": 1}', answer["output_text"])


class TestChains(ResponsesTestCase):
    def chain(self, proxy: RunningProxy, stream: bool) -> list[dict[str, Any]]:
        self.fake.answer(CALLING, DONE, Answer(reasoning="Third.", content="Bye."))
        found = [self.complete(proxy, "q", tools=TOOLS, stream=stream)]
        for asked in (RESULTS, "and now?"):
            found.append(self.complete(proxy, asked, tools=TOOLS, stream=stream, previous_response_id=found[-1]["id"]))
        return found

    def test_a_chain_keeps_every_reasoning_byte_for_byte(self) -> None:
        for stream in (True, False):
            self.fake.forget()
            self.chain(self.proxy(), stream)
            self.assert_upstream_saw("First look.", "Now I know.")
            self.assertEqual([], self.fake.refused)
            roles = [message["role"] for message in self.fake.accepted[-1]["messages"]]
            self.assertEqual(["user", "assistant", "tool", "tool", "assistant", "user"], roles)

    def test_a_chain_parses_only_its_new_items(self) -> None:
        proxy, previous, taken = self.proxy(), None, []
        take = input_items._Reader.read

        def counted(reader: Any, item: Any, param: str) -> None:
            taken.append(param)
            take(reader, item, param)

        with mock.patch.object(input_items._Reader, "read", counted):
            for number in range(8):
                self.fake.answer(Answer(reasoning=f"Thought {number}.", content=f"Answer {number}."))
                taken.clear()
                previous = self.complete(proxy, f"question {number}", previous_response_id=previous)["id"]
        # The last thought, the last answer, and the question.
        self.assertEqual(["input[19]", "input[20]", "input[21]"], taken)

    def test_a_chain_restores_reasoning_without_the_reasoning_store(self) -> None:
        last = self.chain(self.running, stream=True)[-1]
        with self.running.store.database.transaction() as connection:
            connection.execute("DELETE FROM reasonings")
        self.complete(self.running, "still there?", tools=TOOLS, previous_response_id=last["id"])
        self.assert_upstream_saw("First look.", "Now I know.", "Third.")

    def test_deleting_a_response_keeps_its_successors(self) -> None:
        first, second, third = self.chain(self.running, stream=True)
        for link in (first, second):
            reply = self.send(self.running, "DELETE", f"{PATH}/{link['id']}")
            self.assertEqual({"id": link["id"], "object": "response.deleted", "deleted": True}, reply.value)
            self.assertEqual(404, self.get(self.running, link).status)
            self.assertEqual(404, self.get(self.running, link, "/input_items").status)
            self.assertEqual(404, self.send(self.running, "DELETE", f"{PATH}/{link['id']}").status)
            reply = self.create(self.running, "x", previous_response_id=link["id"])
            self.assertEqual((404, "previous_response_not_found"), (reply.status, reply.error["code"]))
        self.complete(self.running, "still there?", tools=TOOLS, previous_response_id=third["id"])
        self.assert_upstream_saw("First look.", "Now I know.", "Third.")

    def test_instructions_of_a_previous_response_are_not_inherited(self) -> None:
        first = self.complete(self.running, "q", instructions="Be brief.")
        self.complete(self.running, "again", previous_response_id=first["id"])
        self.assertEqual("user", self.fake.accepted[-1]["messages"][0]["role"])
        self.complete(self.running, "again", previous_response_id=first["id"], instructions="Be long.")
        sent = self.fake.accepted[-1]["messages"]
        self.assertEqual({"role": "system", "content": "Be long."}, sent[0])
        self.assertNotIn("Be brief.", json.dumps(sent))

    def test_an_item_reference_stands_for_its_item(self) -> None:
        self.fake.answer(CALLING)
        first = self.complete(self.running, "q", tools=TOOLS)
        references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
        self.complete(self.running, [question("q"), *references, *RESULTS], tools=TOOLS)
        self.assert_upstream_saw("First look.")
        self.assertEqual([CALL.id, OTHER_CALL.id], [call["id"] for call in calls_sent(self.fake)])

    def test_an_item_reference_reaches_items_of_previous_responses(self) -> None:
        first = self.complete(self.running, "The question.")
        [asked] = self.get(self.running, first, "/input_items").value["data"]
        for again in ({"type": "item_reference", "id": asked["id"]}, {"id": asked["id"]}):
            self.complete(self.running, [again], previous_response_id=first["id"])
            said = [message["content"] for message in self.fake.accepted[-1]["messages"] if message["role"] == "user"]
            self.assertEqual(["The question."] * 2, said)

    def test_a_failed_response_can_be_continued(self) -> None:
        """Half a call stays in the history; DeepSeek has to accept it all the same."""
        for cut in range(1, 10):
            with self.subTest(cut=cut):
                proxy = self.proxy()
                self.fake.answer(Answer("A thought.", "Some text.", (CALL,), piece=6, cut_after=cut))
                broken = self.create(proxy, "q", tools=TOOLS, stream=True).response
                self.assertEqual(("failed", "server_error"), (broken["status"], broken["error"]["code"]))
                self.assertEqual(broken, self.get(proxy, broken).value)
                self.complete(proxy, "go on", tools=TOOLS, previous_response_id=broken["id"])
                self.assertEqual([], self.fake.refused)


class TestCallers(ResponsesTestCase):
    def test_no_caller_reaches_another_callers_responses(self) -> None:
        for background in (False, True):
            mine = self.create(self.running, "my secret", background=background).value
            item = {"type": "item_reference", "id": mine["id"].replace("resp", "msg") + "_1"}
            theirs = {
                "get": self.get(self.running, mine, key="sk-other"),
                "stream": self.get(self.running, mine, "?stream=true", key="sk-other"),
                "items": self.get(self.running, mine, "/input_items", key="sk-other"),
                "cancel": self.send(self.running, "POST", f"{PATH}/{mine['id']}/cancel", key="sk-other"),
                "delete": self.send(self.running, "DELETE", f"{PATH}/{mine['id']}", key="sk-other"),
                "chain": self.create(self.running, "x", previous_response_id=mine["id"], key="sk-other"),
            }
            for name, told in theirs.items():
                with self.subTest(name, background=background):
                    self.assertEqual(404, told.status)
                    self.assertNotIn("secret", told.body.decode())
            self.assertEqual(400, self.create(self.running, [item], key="sk-other").status)
            self.assertEqual(200, self.get(self.running, mine).status)

    def test_responses_without_a_key_are_401(self) -> None:
        mine = self.complete(self.running, "q")
        for method, rest in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")):
            self.assertEqual(401, self.send(self.running, method, f"{PATH}/{mine['id']}{rest}", key="").status)


class TestStorage(ResponsesTestCase):
    def test_a_response_with_store_false_leaves_nothing(self) -> None:
        for stream in (True, False):
            answer = self.complete(self.running, "q", store=False, stream=stream)
            self.assertFalse(answer["store"])
            for told in (self.get(self.running, answer), self.get(self.running, answer, "/input_items")):
                self.assertEqual((404, "response_not_found"), (told.status, told.error["code"]))
            self.assertEqual(404, self.create(self.running, "x", previous_response_id=answer["id"]).status)
        self.assertEqual(0, stored(self.running))

    def test_a_stored_response_can_be_retrieved(self) -> None:
        for stream in (True, False):
            answer = self.complete(self.running, "q", stream=stream)
            self.assertEqual(answer, self.get(self.running, answer).value)
            self.assertEqual(400, self.get(self.running, answer, "?stream=true").status)
            self.assertEqual(400, self.send(self.running, "POST", f"{PATH}/{answer['id']}/cancel").status)

    def test_the_input_items_of_a_response_are_listed(self) -> None:
        self.fake.answer(CALLING)
        first = self.complete(self.running, [question("one"), {"role": "user", "content": "two"}], tools=TOOLS)
        second = self.complete(self.running, RESULTS, tools=TOOLS, previous_response_id=first["id"])
        whole = self.get(self.running, second, "/input_items?order=asc").value["data"]
        expected = ["message", "message", "reasoning", "message", "function_call", "function_call"]
        self.assertEqual([*expected, *["function_call_output"] * 2], kinds(whole))
        self.assertEqual(first["output"], whole[2:6])
        self.assertEqual(len(whole), len({item["id"] for item in whole}))
        self.assertEqual(whole[::-1], self.get(self.running, second, "/input_items").value["data"])
        self.assertEqual(whole, list(self.pages(self.running, second, "order=asc&limit=3")))
        self.assertEqual(whole[::-1], list(self.pages(self.running, second, "limit=5")))

    def pages(self, proxy: RunningProxy, response: Any, query: str) -> Any:
        after = ""
        while True:
            page = self.get(proxy, response, f"/input_items?{query}{after}").value
            yield from page["data"]
            self.assertEqual((page["data"][0]["id"], page["data"][-1]["id"]), (page["first_id"], page["last_id"]))
            if not page["has_more"]:
                return
            after = f"&after={page['last_id']}"

    def test_a_response_is_stored_before_its_last_event(self) -> None:
        responses = self.running.server.services().get(Responses).store
        is_asked, may_store, put = threading.Event(), threading.Event(), responses.put

        def slow(*details: Any, **options: Any) -> None:
            is_asked.set()
            may_store.wait(PATIENCE)
            put(*details, **options)

        with mock.patch.object(responses, "put", slow), self.open_stream(self.running, "q") as sock:
            self.assertTrue(is_asked.wait(PATIENCE))
            seen = read_until(sock, b"event: response.output_item.done")
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                seen += sock.recv(1_000_000)
            self.assertNotIn(b"event: response.completed", seen)
            may_store.set()
            sock.settimeout(PATIENCE)
            read_until(sock, b"event: response.completed")
            self.assertEqual(1, stored(self.running))


class TestParts(ResponsesTestCase):
    def test_several_text_parts_are_the_same_turn_as_in_a_chat(self) -> None:
        parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
        request = {"type": "message", "role": "user", "content": parts}
        for model in ("deepseek-v4-pro", "deepseek-flash"):
            with self.subTest(model):
                proxy = self.proxy(display_reasoning=False)
                self.fake.answer(Answer("A thought.", calls=(CALL,)))
                first = self.create(proxy, [request], model=model, tools=TOOLS).response
                sent = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
                self.assertEqual(sent, self.fake.accepted[-1]["messages"][0]["content"])
                self.create(proxy, [output(CALL.id)], model=model, tools=TOOLS, previous_response_id=first["id"])
                self.assertEqual(sent, self.fake.accepted[-1]["messages"][0]["content"])
                history = [
                    {"role": "user", "content": "a\nb"},
                    {"role": "assistant", "content": "", "tool_calls": tool_calls([CALL])},
                    {"role": "tool", "tool_call_id": CALL.id, "content": "42"},
                ]
                self.send(proxy, "POST", "/v1/chat/completions", {"model": model, "messages": history, "tools": []})
                self.assert_upstream_saw("A thought.")


@needs("passthrough")
class TestPassthrough(ResponsesTestCase):
    def test_a_routed_model_gets_the_responses_request(self) -> None:
        other, route = self.route()
        proxy = self.proxy(passthrough={"gpt-*": route}, access_keys=["sk-test"])
        body = b'{ "model" : "gpt-9", "input":"q", "store": true }'
        reply = self.send(proxy, "POST", PATH, body)
        # What stands in for the other place knows DeepSeek's models only.
        self.assertEqual(400, reply.status)
        [seen] = other.seen
        self.assertEqual((body, PATH), (seen.body, seen.path))
        self.assertEqual("Bearer sk-of-the-route", seen.headers["authorization"])
        self.assertEqual(([], 0), (self.fake.seen, stored(proxy)))


def stored(proxy: RunningProxy) -> int:
    return proxy.server.services().get(Responses).store.totals()[0]


def calls_sent(fake: FakeDeepSeek) -> list[dict[str, Any]]:
    return [call for message in fake.accepted[-1]["messages"] for call in message.get("tool_calls") or ()]


MARK = "0123456789abcdef" * 2
UNKNOWN = f"resp_{MARK}"


class TestRefusals(ResponsesTestCase):
    def assert_refused(self, reply: Any, status: int, param: str | None = None) -> None:
        self.assertEqual(status, reply.status, reply.body[:300])
        self.assertLessEqual({"message", "type", "param", "code"}, reply.error.keys())
        self.assertEqual((param, "invalid_request_error"), (reply.error["param"], reply.error["type"]))
        self.assertTrue(reply.error["message"])
        self.assertEqual([], self.fake.seen)

    def assert_alive(self) -> None:
        self.complete(self.running, "Are you there?")
        self.assertEqual(1, self.running.server.services().get(Responses).store.totals()[0])

    def test_unknown_response_ids_are_404(self) -> None:
        for given in (UNKNOWN, "resp_", "x", "%00", "%ff", "..", "resp_%E2%82%AC", "'%20OR%201=1", "x" * 5000):
            for method, rest in (
                ("GET", ""), ("GET", "?stream=true"), ("GET", "/input_items"), ("DELETE", ""), ("POST", "/cancel"),
            ):  # fmt: skip
                with self.subTest(given[:20], method=method, rest=rest):
                    self.assert_refused(self.send(self.running, method, f"{PATH}/{given}{rest}"), 404)
        for given in (UNKNOWN, "x", "é", "\ud800", "x" * 5000):
            reply = self.send(self.running, "POST", PATH, {"input": "q", "previous_response_id": given})
            self.assert_refused(reply, 404, "previous_response_id")
            self.assertLess(len(reply.body), 1000)
        self.assert_alive()


def users(messages: list[Json]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "user"]


class TestOddities(ResponsesTestCase):
    def test_items_of_hosted_tools_never_become_user_messages(self) -> None:
        proxy, chat = self.proxy(), [question("q")]
        before: list[Json] = []
        for item in HOSTED:
            chat += [item, {"role": "assistant", "content": "a"}, question(f"after {item['type']}")]
            self.complete(proxy, chat)
            sent = self.fake.accepted[-1]["messages"]
            self.assertEqual(before, sent[: len(before)], "a prefix that was sent stays")
            before = sent
        self.assertNotIn(OPAQUE, json.dumps(self.fake.accepted[-1]))
        self.assertEqual(["q"] + [f"after {item['type']}" for item in HOSTED], users(before))
        first = self.complete(proxy, chat)
        self.complete(proxy, "go on", previous_response_id=first["id"])
        self.assertEqual(before, self.fake.accepted[-1]["messages"][: len(before)])

    def test_thousands_of_references_read_the_store_once(self) -> None:
        first = self.complete(self.running, "q")
        references = [{"type": "item_reference", "id": first["output"][1]["id"]}, question("again")] * width(1000, 5000)
        began = time.process_time()
        self.assertEqual(200, self.create(self.running, references).status)
        self.assertLess(time.process_time() - began, 30)


ENDS = ("completed", "cancelled")


def at_once(*deeds: Callable[[], Any]) -> None:
    start = threading.Barrier(len(deeds))

    def run(deed: Callable[[], Any]) -> None:
        start.wait(PATIENCE)
        deed()

    run_at_once(run, deeds)


class TestRaces(BackgroundTestCase):
    def stalled_after(self, count: int) -> Json:
        """A response whose answer stalls after so many events, until it is released."""
        self.addCleanup(self.fake.release.set)
        self.fake.release.clear()
        self.fake.answer(Answer("A thought.", "Some text.", piece=4, stall_after=count))
        queued = self.queued(self.running)
        self.fake.stalls.get(timeout=PATIENCE)
        return queued

    def test_an_end_that_races_a_cancel_gives_one_final_status(self) -> None:
        for count in range(9):
            response = self.stalled_after(count)
            told: list[Json] = []
            with self.following(self.running, response) as read:
                read(b"response.in_progress")
                at_once(
                    self.fake.release.set,
                    lambda response=response, told=told: told.append(self.cancel(self.running, response)),
                    lambda response=response, told=told: told.append(self.cancel(self.running, response)),
                )
                last = check_stream(events(dechunked(read())))
            with self.subTest(count):
                found = self.get(self.running, response).value
                self.assertEqual([last, found, found], [found, *told])
                self.assertIn(found["status"], ENDS)

    def test_an_end_that_races_a_delete_leaves_nothing(self) -> None:
        tasks = self.running.server.services().get(Responses).jobs._jobs
        for count in range(9):
            response = self.stalled_after(count)
            path = f"{PATH}/{response['id']}"
            at_once(self.fake.release.set, lambda path=path: self.send(self.running, "DELETE", path))
            self.assertTrue(eventually(lambda: not tasks))
            with self.subTest(count):
                self.assertEqual(404, self.get(self.running, response).status)

    def test_two_deletes_at_once_are_one_success(self) -> None:
        for background in (False, True):
            response = self.create(self.running, "q", background=background).value
            told: list[int] = []
            delete = functools.partial(self.send, self.running, "DELETE", f"{PATH}/{response['id']}")
            at_once(*[lambda told=told, delete=delete: told.append(delete().status)] * 2)
            self.assertEqual([200, 404], sorted(told))

    def test_many_responses_continue_the_same_one_at_once(self) -> None:
        first = self.complete(self.running, "q")
        found: list[Json] = []
        at_once(*[lambda: found.append(self.complete(self.running, "and?", previous_response_id=first["id"]))] * 6)
        self.assertEqual(6, len({each["id"] for each in found}))
        for each in found:
            self.assertEqual(each, self.get(self.running, each).value)
