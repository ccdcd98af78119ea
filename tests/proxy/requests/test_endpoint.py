"""The prologue of all endpoints: what happens to a request before its own API reads it."""

import json
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.api.endpoint import GenerationEndpoint
from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.errors import BadRequest, Unauthorized, UpstreamRefused
from deepseek_cursor_proxy.exchange.client_request import ClientRequest, RelayedApi
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest
from tests.fake_deepseek import Answer, Failure
from tests.support.harness import SocketTestCase
from tests.support.histories import user

API = RelayedApi("/chat/completions")
CHAT = ChatRequest("deepseek-v4-pro", "deepseek-v4-pro", (user("hi"),))


class EndpointTestCase(SocketTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.other, route = self.route()
        self.services = self.build_services(passthrough={"gpt-*": route}, access_keys=["sk-test"])
        self.endpoint = GenerationEndpoint(self.services, self.services.open_report("chat"))
        self.received: list[ClientRequest] = []
        self.bodies_read = 0

    def serve(
        self, body: object, api: RelayedApi | None = API, key: str = "sk-test", model: str | None = None
    ) -> HttpReply:
        headers = {"authorization": f"Bearer {key}"}
        request = HttpRequest("POST", "/", headers=headers, read_body=lambda: self.read(body))
        return self.endpoint.serve(request, api, self.create, model)

    def read(self, body: object) -> bytes:
        self.bodies_read += 1
        return body if isinstance(body, bytes) else json.dumps(body).encode()

    def create(self, received: ClientRequest) -> HttpReply:
        self.received.append(received)
        return HttpReply(201)


class TestServe(EndpointTestCase):
    def test_the_endpoint_gets_the_decoded_body_and_its_caller(self) -> None:
        self.assertEqual(201, self.serve(b'{ "model": "deepseek-v4-pro" }').status)
        [received] = self.received
        self.assertEqual(({"model": "deepseek-v4-pro"}, 30), (received.body, received.body_bytes))
        self.assertEqual("sk-test", received.credential)

    def test_the_body_of_a_caller_without_a_key_is_not_read(self) -> None:
        with self.assertRaises(Unauthorized):
            self.serve({}, key="")
        self.assertEqual((0, []), (self.bodies_read, self.received))

    def test_a_body_that_is_no_json_object_reaches_no_endpoint(self) -> None:
        for body in (b"", b"[]", b"{"):
            with self.assertRaises(BadRequest):
                self.serve(body)
        self.assertEqual([], self.received)

    def test_a_model_of_another_upstream_goes_there_as_it_came(self) -> None:
        self.other.answer(Failure(418, body=b"tea"))
        body = b'{"model" : "gpt-9", "stream": true}'
        found = self.serve(body)
        self.assertEqual((418, b"tea"), (found.status, found.body))
        self.assertEqual((body, "/v1/chat/completions"), (self.other.seen[0].body, self.other.seen[0].path))
        self.assertEqual([], self.received)

    def test_nothing_is_passed_through_where_the_endpoint_has_no_such_api(self) -> None:
        self.assertEqual(201, self.serve({"model": "gpt-9"}, api=None).status)

    def test_a_model_in_the_path_takes_the_place_of_the_one_in_the_body(self) -> None:
        self.serve({"model": "gpt-9"}, model="deepseek-v4-pro")
        self.assertEqual("deepseek-v4-pro", self.received[0].body["model"])
        self.other.answer(Failure(418))
        self.serve({"model": "deepseek-v4-pro", "n": 1}, model="gpt-9")
        self.assertEqual({"model": "gpt-9", "n": 1}, self.other.seen[0].payload)


class TestOpen(EndpointTestCase):
    def open(self, **details: Any) -> Any:
        self.serve({"model": "deepseek-v4-pro"})
        exchange = self.endpoint.open(self.received[-1]._replace(chat=CHAT._replace(**details)))
        self.addCleanup(exchange.close)
        return exchange

    def test_access_learns_what_deepseek_thinks_of_a_key(self) -> None:
        access = self.services.access
        for answer, name in ((Answer(content="x"), "record_accepted"), (Failure(401), "record_refused")):
            self.fake.answer(answer)
            with mock.patch.object(access, name) as record:
                try:
                    self.open()
                except UpstreamRefused:
                    self.assertEqual("record_refused", name)
            record.assert_called_once_with(self.received[-1].caller)

    def test_each_choice_is_a_call_of_its_own(self) -> None:
        self.fake.answer(Answer(content="x"), Answer(content="y"))
        self.open(choices=2)
        self.assertEqual(2, len(self.fake.seen))
