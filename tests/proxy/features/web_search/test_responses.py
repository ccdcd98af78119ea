"""Searches that DeepSeek runs itself: the client sees them, and DeepSeek gets them back as it sent them."""

import itertools
import json
import re
from dataclasses import replace
from typing import Any

from deepseek_cursor_proxy.features.request_log.feature import RequestLog
from tests.fake_deepseek import Answer, Call, Citation, Search, prompt
from tests.proxy.features.responses.test_background import BackgroundTestCase
from tests.support.harness import PATIENCE, read_until
from tests.support.polling import eventually
from tests.support.responses_client import PATH, Json, ResponsesTestCase, check_stream, kinds, question

TOOL = {"type": "web_search", "external_web_access": True}
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}
PATCHES = {"type": "custom", "name": "apply_patch", "description": "Patches files."}
AGENTS = {"type": "namespace", "name": "agents.v1", "description": "Agents.", "tools": [{**LOOK, "name": "spawn"}]}
TOOLS = [LOOK, PATCHES, AGENTS, TOOL]
CITED = (Citation("https://a.example", "A", 0, 2), Citation("https://b.example", "B", 3, 9))
ODD = '{"type": "odd_call", "id": "odd_1", "status": "completed", "data": {"a": [1]}}'
FIRST = Answer(
    reasoning="It does.",
    content="It rains.",
    searches=(
        Search(("rain", "weather"), reasoning="Where? "),
        Search(url="https://a.example", text="I read on."),
        Search(url="https://a.example", pattern="rain", reasoning="There? ", status="failed"),
        Search(raw=ODD),
    ),
    citations=CITED,
)
SECOND = Answer("And the sun? ", "It shines.", searches=(Search(("sun",), has_id=False), Search(("sun",))))
THIRD = Answer("Enough.", "You are welcome.")
THOUGHTS = ("Where? There? It does.", "And the sun? ")


def without(item: Json, *names: str) -> Json:
    return {name: value for name, value in item.items() if name not in names}


def as_codex(items: list[Json]) -> list[Json]:
    """Items as Codex sends them: without ids, searches with the fields it knows, reasoning sealed."""
    found = []
    for item in items:
        if item["type"] == "reasoning":
            item = {"type": "reasoning", "summary": [], "encrypted_content": item.get("encrypted_content")}
        elif item["type"] == "web_search_call":
            item = {"type": "web_search_call", "status": item["status"], "action": item["action"]}
        found.append(without(item, "id"))
    return found


class SearchCase(ResponsesTestCase):
    def sent_items(self) -> list[list[str]]:
        return [[json.dumps(item) for item in self.sent_body(at)["input"]] for at in range(len(self.fake.seen))]

    def assert_prefixes_stay(self) -> None:
        self.assertEqual([], self.fake.refused)
        self.assertEqual({"/responses"}, {seen.path for seen in self.fake.seen})
        every = self.sent_items()
        for before, after in itertools.pairwise(every):
            self.assertEqual(before, after[: len(before)])

    def assert_cached(self, response: Json) -> None:
        """Everything up to the last question was in DeepSeek's cache: it got its own answers back as they were."""
        usage = response["usage"]
        *_, last, header = prompt.parts(self.fake.seen[-1].payload)
        new = sum(-(-len(part.text.encode()) // 4) for part in (last, header))
        self.assertEqual(usage["input_tokens"] - new, usage["input_tokens_details"]["cached_tokens"])


class TestThreeTurns(SearchCase):
    def chat(self, echo: Any, **fields: Any) -> list[Json]:
        proxy, history = self.running, [question("Rain?")]
        found = []
        for answer, following in ((FIRST, "And sun?"), (SECOND, "Thanks."), (THIRD, "")):
            self.fake.answer(answer)
            found.append(self.complete(proxy, history, tools=TOOLS, **fields))
            if len(found) > 1:
                self.assert_cached(found[-1])
            history = [*history, *echo(found[-1]["output"]), question(following)]
        self.assert_prefixes_stay()
        self.assert_upstream_saw(*THOUGHTS)
        return found

    def test_items_that_come_back_as_they_are_go_up_as_deepseek_sent_them(self) -> None:
        for stream in (True, False):
            with self.subTest(stream=stream):
                self.fake.forget()
                found = self.chat(list, stream=stream, store=False, instructions=f"Stream: {stream}.")
                searches = [item for item in found[0]["output"] if item["type"].endswith("_call")]
                self.assertTrue(all(json.dumps(item) in json.dumps(self.sent_body()["input"]) for item in searches))
                kinds_sent = kinds(self.sent_body()["input"])
                self.assertEqual([*kinds(found[0]["output"]), "message"], kinds_sent[2 : len(found[0]["output"]) + 3])

    def test_a_client_that_drops_ids_and_seals_its_reasoning(self) -> None:
        found = self.chat(as_codex, stream=True, store=False, include=["reasoning.encrypted_content"])
        ids = [item.get("id") for item in self.sent_body()["input"] if item["type"] == "web_search_call"]
        self.assertEqual([item["id"] for item in found[0]["output"] if item["type"] == "web_search_call"], ids[:3])

    def test_previous_response_id_and_references_lead_to_the_same_items(self) -> None:
        self.chat(list, stream=True, store=False)
        expected = self.sent_items()[-1]
        for way in ("previous", "reference"):
            with self.subTest(way):
                self.fake.forget()
                proxy, before, history = self.proxy(), None, [question("Rain?")]
                for answer, following in ((FIRST, "And sun?"), (SECOND, "Thanks."), (THIRD, "")):
                    self.fake.answer(answer)
                    found = self.complete(proxy, history, tools=TOOLS, previous_response_id=before)
                    if way == "previous":
                        before, history = found["id"], [question(following)]
                    else:
                        references = [{"type": "item_reference", "id": item["id"]} for item in found["output"]]
                        history = [*history, *references, question(following)]
                self.assert_prefixes_stay()
                self.assert_upstream_saw(*THOUGHTS)
                self.assertEqual([json.loads(item)["type"] for item in expected], kinds(self.sent_body()["input"]))


class TestAnswers(SearchCase):
    def test_a_stream_and_a_plain_response_have_the_same_items(self) -> None:
        seen = []
        for stream in (True, False):
            self.fake.answer(FIRST)
            found = self.complete(self.proxy(), "Rain?", tools=TOOLS, stream=stream)
            seen.append([without(item, "id") for item in found["output"]])
            self.assertEqual([each.annotation() for each in CITED], found["output"][-1]["content"][0]["annotations"])
            self.assertEqual("I read on.It rains.", found["output_text"])
        self.assertEqual(*seen)

    def test_every_search_has_an_id_of_its_own(self) -> None:
        twice = Search(raw='{"type": "web_search_call", "id": "ws_1", "status": "completed"}')
        self.fake.answer(Answer("Hm.", "Rain.", searches=(twice, twice, Search(has_id=False))))
        response = self.complete(self.running, "Rain?", tools=TOOLS, stream=True)
        ids = [item["id"] for item in response["output"] if item["type"] == "web_search_call"]
        suffix = response["id"].removeprefix("resp_")
        self.assertEqual(["ws_1", f"ws_{suffix}_1", f"ws_{suffix}_2"], ids)

    def test_functions_custom_tools_and_namespaces_work_beside_a_search(self) -> None:
        calls = (Call("call_1", "apply_patch", '{"input": "a\\nb"}'), Call("call_2", "agents_v1__spawn", "{}"))
        self.fake.answer(Answer("Patch.", "On it.", calls, searches=(Search(reasoning="Look. "),)))
        found = self.complete(self.running, "Do it.", tools=TOOLS, stream=True)
        *_, patch, spawn = found["output"]
        self.assertEqual(("custom_tool_call", "a\nb"), (patch["type"], patch["input"]))
        names = {tool["name"] for tool in self.sent_body()["tools"] if tool["type"] == "function"}
        self.assertEqual(3, len(names))
        self.assertEqual(["function"] * 3 + ["web_search"], [tool["type"] for tool in self.sent_body()["tools"]])
        outputs = [{"type": "custom_tool_call_output", "call_id": "call_1", "output": "done"}]
        outputs += [{"type": "function_call_output", "call_id": "call_2", "output": "done"}]
        self.complete(self.running, outputs, tools=TOOLS, previous_response_id=found["id"])
        self.assert_upstream_saw("Look. Patch.")
        self.assertEqual("function_call", spawn["type"])
        self.assert_prefixes_stay()

    def test_a_stream_that_breaks_off_inside_a_search_leaves_it_undone(self) -> None:
        for cut in (3, 4, 5):
            with self.subTest(cut):
                self.fake.answer(Answer("Hm.", "Rain.", searches=(Search(),), cut_after=cut))
                found = self.create(self.running, "Rain?", tools=[TOOL], stream=True).events
                self.assertEqual("response.failed", found[-1]["type"])
                (search,) = found[-1]["response"]["output"]
                self.assertEqual(("web_search_call", "failed"), (search["type"], search["status"]))
                self.assertNotIn("response.output_item.done", [event["type"] for event in found])

    def test_searches_are_counted(self) -> None:
        self.fake.answer(FIRST, SECOND, THIRD)
        for _ in range(3):
            self.complete(self.running, "Rain?", tools=TOOLS)
        records = self.running.server.services().get(RequestLog).ended()
        self.assertEqual({1, 2, 0}, {record.tokens.searches for record in records if record.tokens is not None})


class TestFaults(SearchCase):
    def test_a_client_that_leaves_inside_a_search_cancels_it(self) -> None:
        self.fake.answer(Answer("Hm.", "Rain.", searches=(Search(reasoning="Where? "),), stall_after=11))
        with self.open_stream(self.running, "Rain?", tools=[TOOL]) as sock:
            seen = read_until(sock, b"event: response.web_search_call.searching")
        self.assertTrue(self.fake.wait_for_hangup(PATIENCE))
        response = {"id": re.findall(rb"resp_[0-9a-f]{32}", seen)[0].decode()}
        self.assertTrue(eventually(lambda: self.get(self.running, response).status == 200))
        stored = self.get(self.running, response).value
        self.assertEqual("cancelled", stored["status"])
        self.assertEqual(
            [("reasoning", "completed"), ("web_search_call", "failed")], list(map(state, stored["output"]))
        )

    def test_no_caller_gets_the_searches_of_another(self) -> None:
        for key in ("sk-one", "sk-two"):
            self.fake.answer(replace(FIRST, searches=(Search(reasoning="Where? "),)))
            output = self.complete(self.running, "Rain?", tools=TOOLS, store=False, key=key)["output"]
            search = next(item for item in output if item["type"] == "web_search_call")
            self.complete(self.running, [question("Rain?"), *as_codex(output), question("Sure?")], key=key)
            self.assertEqual([search["id"]], [item["id"] for item in self.sent_body()["input"] if "id" in item])
        self.complete(self.running, [question("Rain?"), *as_codex(output), question("Sure?")], key="sk-three")
        self.assertEqual([], [item for item in self.sent_body()["input"] if "id" in item])


def state(item: Json) -> tuple[str, str]:
    return item["type"], item["status"]


class TestChoiceOfApi(SearchCase):
    def paths(self) -> list[str]:
        return [seen.path for seen in self.fake.seen]

    def test_only_requests_with_a_search_go_to_the_responses_api(self) -> None:
        self.fake.answer(FIRST)
        proxy = self.running
        output = self.complete(proxy, "Rain?", tools=TOOLS, store=False)["output"]
        self.complete(proxy, "Rain?", tools=[LOOK])
        self.complete(proxy, [question("Rain?"), *output, question("Sure?")])
        self.assertEqual(["/responses", "/chat/completions", "/responses"], self.paths())

    def test_a_deepseek_that_ignores_the_tool_answers_as_always(self) -> None:
        self.fake.runs_server_tools = False
        self.fake.answer(FIRST)
        found = self.complete(self.proxy(), "Rain?", tools=TOOLS, stream=True)
        self.assertEqual(["reasoning", "message"], kinds(found["output"]))

    def test_tokens_are_counted_with_searches_in_the_history(self) -> None:
        self.fake.answer(FIRST)
        output = self.complete(self.running, "Rain?", tools=TOOLS, store=False)["output"]
        body = {"input": [question("Rain?"), *output, question("Sure?")], "tools": TOOLS}
        reply = self.send(self.running, "POST", f"{PATH}/input_tokens", body)
        self.assertGreater(reply.value["input_tokens"], 10)


class TestCompaction(SearchCase):
    def test_a_history_with_searches_is_compacted(self) -> None:
        self.fake.answer(FIRST, Answer(None, "They talked about rain."))
        items = [question("Rain?")]
        items += [*self.complete(self.running, items, tools=TOOLS)["output"], question("Thanks.")]
        reply = self.send(self.running, "POST", f"{PATH}/compact", {"input": items, "tools": TOOLS})
        self.assertEqual(200, reply.status, reply.body)
        self.assertEqual(["message", "message", "compaction"], kinds(reply.value["output"]))
        self.assertEqual("none", self.sent_body()["tool_choice"])
        self.assert_prefixes_stay()


class TestBackground(BackgroundTestCase):
    def test_a_background_response_keeps_its_searches_and_their_events(self) -> None:
        self.fake.answer(FIRST)
        queued = self.queued(self.running, "Rain?", tools=TOOLS)
        found = self.finished(self.running, queued)
        self.assertEqual("completed", found["status"])
        self.assertIn("web_search_call", kinds(found["output"]))
        reply = self.send(self.running, "GET", f"{PATH}/{queued['id']}?stream=true")
        self.assertEqual(found["output"], check_stream(reply.events)["output"])
        following = self.complete(self.running, "Sure?", tools=TOOLS, previous_response_id=queued["id"])
        self.assertEqual("completed", following["status"])
        self.assertEqual([], self.fake.refused)
