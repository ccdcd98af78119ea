"""Named keys over real sockets: whose reasoning is found, which key goes upstream, what a reload changes."""

import dataclasses
import os
from typing import Any
from unittest import mock

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.features.usage.feature import Usage
from tests.fake_deepseek import Answer, Call
from tests.support.admin_client import ADMIN_KEY, AdminCase
from tests.support.harness import RunningProxy, chat_body, request_bytes
from tests.support.histories import TOOLS, tool_calls

ANN, ANN_2, BEN = "sk-the-first-key-of-ann", "sk-the-second-key-of-ann", "sk-the-key-of-ben"
THOUGHT = "a thought worth keeping"
QUESTION = {"role": "user", "content": "q"}
CALL = Call("call_1", "read_file", '{"path": "a"}')


class NamedKeysTest(AdminCase):
    def setUp(self) -> None:
        super().setUp()
        self.enterContext(mock.patch.dict(os.environ, {"DEEPSEEK_API_KEY": "sk-held-by-the-proxy"}))

    def begin(self, proxy: RunningProxy, key: str) -> None:
        self.fake.answer(Answer(reasoning=THOUGHT, calls=(CALL,)))
        self.chat(proxy, QUESTION, key=key, tools=TOOLS)

    def go_on(self, proxy: RunningProxy, key: str) -> str | None:
        said = {"role": "assistant", "content": "", "tool_calls": tool_calls([CALL])}
        self.fake.answer(Answer(content="done"))
        self.chat(
            proxy, QUESTION, said, {"role": "tool", "tool_call_id": CALL.id, "content": "ok"}, key=key, tools=TOOLS
        )
        return next((each["reasoning_content"] for each in self.sent() if "reasoning_content" in each), None)

    def reconfigure(self, proxy: RunningProxy, **settings: Any) -> None:
        config: ProxyConfig = dataclasses.replace(proxy.server.config, **settings)
        proxy.server.reconfigure(config)

    def test_a_key_that_gets_a_name_and_one_that_replaces_it_keep_the_chat(self) -> None:
        proxy = self.proxy(access_keys=[ANN])
        self.begin(proxy, ANN)
        self.reconfigure(proxy, access_keys=(), keys={"ann": {"key": ANN}})
        self.assertEqual(THOUGHT, self.go_on(proxy, ANN))
        self.reconfigure(proxy, keys={"ann": {"key": [ANN, ANN_2]}})
        self.assertEqual(THOUGHT, self.go_on(proxy, ANN_2))
        self.reconfigure(proxy, keys={"ann": {"key": ANN_2}})
        self.assertEqual(401, self.round_trip(proxy, request_bytes(chat_body(), key=ANN)).status)
        self.assertEqual(THOUGHT, self.go_on(proxy, ANN_2))

    def test_names_find_the_reasoning_of_others_only_in_a_group_that_shares_it(self) -> None:
        proxy = self.proxy(keys={"ann": {"key": ANN, "group": "lab"}, "ben": {"key": BEN, "group": "lab"}})
        for shares in (False, True):
            with self.subTest(shares=shares):
                self.reconfigure(proxy, groups={"lab": {"share_reasoning": shares}})
                self.begin(proxy, ANN)
                self.assertEqual(shares, self.go_on(proxy, BEN) == THOUGHT)

    def test_the_upstream_is_called_with_the_key_in_the_variable_of_the_name(self) -> None:
        os.environ["KEY_OF_ANN"] = "sk-of-ann-at-deepseek"
        keys = {"ann": {"key": ANN, "upstream_key_env": "KEY_OF_ANN"}, "ben": {"key": BEN}}
        proxy = self.proxy(keys=keys)
        for key in (ANN, BEN):
            self.fake.answer(Answer(content="hi"))
            self.chat(proxy, QUESTION, key=key)
        sent = [seen.headers["authorization"] for seen in self.fake.seen]
        self.assertEqual(["Bearer sk-of-ann-at-deepseek", "Bearer sk-held-by-the-proxy"], sent)

    def test_figures_of_a_key_have_its_name(self) -> None:
        keys = {"ann": {"key": ANN, "usd_per_day": 5, "group": "lab", "note": "laptop"}, "ben": {"key": BEN}}
        proxy = self.admin_proxy(keys=keys, groups={"lab": {"concurrent": 2}})
        admin = self.admin(proxy)
        self.get(admin, "/metrics")
        self.fake.answer(Answer(content="hi"))
        self.chat(proxy, QUESTION, key=ANN)
        proxy.server.services().get(Usage).ledger.flush()
        found = self.get(admin, "/api/keys").value
        ann, ben = found["keys"]
        [limit] = ann["limits"]
        self.assertEqual(
            ("usd_per_day", 5.0, 0, True), tuple(limit[name] for name in ("limit", "most", "reserved", "is_money"))
        )
        self.assertLess(0, limit["used"])
        self.assertAlmostEqual(ann["cost_today"], limit["used"])
        self.assertEqual(0, limit["resets_at"] % 86400)
        self.assertEqual((1, "lab", "laptop"), (ann["requests_today"], ann["group"], ann["note"]))
        self.assertEqual((0, []), (ben["requests_today"], ben["limits"]))
        self.assertEqual(["concurrent"], [each["limit"] for each in found["groups"][0]["limits"]])
        self.assertNotIn(ANN, str(found))
        lines = self.get(admin, "/metrics").body.decode().splitlines()
        self.assertIn('dcp_key_requests_total{key="ann",outcome="completed"} 1', lines)
        self.assertTrue(any(line.startswith('dcp_key_cost_total{key="ann",currency="USD"} ') for line in lines))
        [request] = self.get(admin, "/api/requests").value["requests"]
        self.assertEqual("ann", request["key"])

    def test_limits_that_cannot_be_read_are_said_so(self) -> None:
        proxy = self.admin_proxy(keys={"ann": {"key": ANN, "usd_per_day": 5}})
        admin = self.admin(proxy)
        proxy.store.database.close()
        self.assertEqual(503, self.get(admin, "/api/keys").status)

    def test_no_key_of_a_client_opens_the_dashboard(self) -> None:
        admin = self.admin(self.admin_proxy(keys={"ann": {"key": ANN}}))
        self.assertEqual(401, self.get(admin, "/api/stats", key=ANN).status)
        self.assertEqual(200, self.get(admin, "/api/stats", key=ADMIN_KEY).status)
