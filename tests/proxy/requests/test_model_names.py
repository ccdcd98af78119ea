"""Model names over sockets: aliases, suffixes, and the name in the answer."""

import json

from tests.support.harness import SocketTestCase, read_reply, request_bytes
from tests.unit.deepseek.test_model_resolver import FLASH, PRO


class TestModelNames(SocketTestCase):
    def test_the_answer_has_the_model_name_of_the_request(self) -> None:
        proxy = self.proxy(models={"gpt-5.6-sol": PRO})
        for stream in (True, False):
            answer = self.client(proxy, stream=stream, model="GPT-5.6-sol-max[1m]").ask("hi").final
            self.assertEqual({"GPT-5.6-sol-max[1m]"}, {event["model"] for event in answer.events})
            sent = self.fake.accepted[-1]
            self.assertEqual((PRO, "max"), (sent["model"], sent["reasoning_effort"]))

    def test_nothink_turns_thinking_off_for_that_request_only(self) -> None:
        client = self.client(self.proxy(), model="deepseek-flash-nothink")
        client.ask("hi")
        self.assertEqual({"type": "disabled"}, self.fake.accepted[-1]["thinking"])
        self.assertNotIn("reasoning_effort", self.fake.accepted[-1])
        client.model = "deepseek-flash"
        client.ask("and now?")
        self.assertEqual({"type": "enabled"}, self.fake.accepted[-1]["thinking"])

    def test_model_aliases_are_listed_and_work_as_azure_deployments(self) -> None:
        proxy = self.proxy(models={"gpt-5.6-sol": FLASH, "gpt-*": PRO})
        sock = self.connect(proxy, b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        names = [model["id"] for model in json.loads(read_reply(sock)[2])["data"]]
        self.assertEqual([PRO, FLASH, "gpt-5.6-sol"], names)
        body = {"messages": [{"role": "user", "content": "x"}]}
        sock.sendall(request_bytes(body, path="/openai/deployments/gpt-5.6-sol/chat/completions"))
        self.assertEqual("gpt-5.6-sol", json.loads(read_reply(sock)[2])["model"])
        self.assertEqual(FLASH, self.fake.accepted[-1]["model"])
