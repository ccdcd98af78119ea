"""Keys of the owner for an upstream: which call spends which, who may spend them, and what becomes of a refused one."""

from typing import Any

from deepseek_cursor_proxy.config.access_keys import AccessKey
from tests.fake_deepseek import Answer, Failure, FakeDeepSeek
from tests.support.harness import PATIENCE, RunningProxy, chat_body, read_reply, request_bytes
from tests.support.upstreams import UpstreamsTestCase, failing

ONE, TWO, THREE = "sk-owner-one-aaaaaaaaaaaa", "sk-owner-two-bbbbbbbbbbbb", "sk-owner-three-cccccccccc"
CLIENT = "sk-test"


def key_of(fake: FakeDeepSeek, request: int = -1) -> str:
    return fake.seen[request].headers["authorization"].removeprefix("Bearer ")


class KeysTestCase(UpstreamsTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.set_keys(POOL=f"{ONE}, {TWO}", MORE=THREE, EMPTY="")

    def pooled(self, *variables: str, spare: dict[str, Any] | None = None, **settings: Any) -> RunningProxy:
        """A proxy whose main upstream has keys of the owner, for callers who may spend them."""
        tables = self.tables()
        tables["main"]["key_env"] = list(variables)
        tables["spare"] |= spare or {}
        return self.behind(tables, **{"access_keys": (CLIENT, "sk-other"), **settings})


class TestKeyPools(KeysTestCase):
    def test_calls_at_once_use_different_keys(self) -> None:
        proxy = self.pooled("POOL", "MORE")
        self.main.answer(*[Answer(stall_after=2)] * 3)
        socks = [self.connect(proxy, {**chat_body(f"chat {at}"), "stream": True}) for at in range(3)]
        for _ in socks:
            self.main.stalls.get(timeout=PATIENCE)
        self.main.release.set()
        for sock in socks:
            read_reply(sock)
        self.assertEqual({ONE, TWO, THREE}, {key_of(self.main, at) for at in range(3)})
        (upstream, _) = proxy.server.services().upstreams.all
        assert upstream.keys is not None
        self.assertEqual([0, 0, 0], [key.calls for key in upstream.keys._keys])

    def test_a_chat_keeps_its_key(self) -> None:
        proxy = self.pooled("POOL", "MORE")
        self.main.answer(Answer(stall_after=2))
        sock = self.connect(proxy, {**chat_body("busy"), "stream": True})
        self.main.stalls.get(timeout=PATIENCE)
        self.ask(proxy, "chat")
        self.main.release.set()
        read_reply(sock)
        for _ in range(3):
            self.ask(proxy, "chat")
        self.assertEqual([ONE, TWO, TWO, TWO, TWO], [key_of(self.main, at) for at in range(5)])

    def test_a_key_that_is_refused_is_set_aside_and_named_by_its_digest(self) -> None:
        for status in (401, 402):
            with self.subTest(status):
                self.main.forget()
                proxy = self.pooled("POOL")
                self.main.answer(Failure(status, f"no: {ONE}"))
                with self.assertLogs(level="INFO") as logged:
                    for at in range(3):
                        self.assertEqual(200, self.ask(proxy, f"chat {at}").status)
                self.assertEqual([ONE, TWO, TWO, TWO], [key_of(self.main, at) for at in range(4)])
                lines = "\n".join(logged.output)
                self.assertEqual(
                    1, lines.count(f"its key {AccessKey.of(ONE)} is not used for deepseek-v4-pro for 600 s")
                )
                self.assertNotIn(ONE, lines)
                self.assertEqual(0, len(self.spare.seen))

    def test_a_key_that_is_refused_for_one_request_serves_all_others(self) -> None:
        """An upstream may refuse one model, or more tokens than are paid for."""
        for status in (401, 402):
            for refused in ({"model": "deepseek-v4-pro"}, {"max_tokens": 300_000}):
                with self.subTest(status, refused=refused):
                    self.main.forget()
                    self.spare.forget()
                    proxy = self.pooled("MORE")
                    self.main.answer(Failure(status, "This request requires more credits, or fewer max_tokens"))
                    for at in range(2):
                        self.assertEqual(200, self.ask(proxy, f"chat {at}", **refused).status)
                    self.assertEqual([1, 2], self.counts(), "such requests go elsewhere for a time")
                    for key in (CLIENT, "sk-other"):
                        self.ask(proxy, f"of {key}", key=key, model="deepseek-flash", max_tokens=100)
                    self.ask(proxy, "of another caller", key="sk-other", **refused)
                    self.assertEqual([4, 2], self.counts())

    def test_when_every_key_is_refused_the_next_upstream_is_asked(self) -> None:
        proxy = self.pooled("POOL")
        self.main.answer(Failure(401), Failure(402))
        for at in range(3):
            self.assertEqual(200, self.ask(proxy, f"chat {at}").status)
        self.assertEqual([2, 3], self.counts())
        self.assertEqual(CLIENT, key_of(self.spare))

    def test_without_another_upstream_the_owner_is_told_what_to_do(self) -> None:
        tables = {"main": {"base_url": self.enterContext(failing(401, f"bad {ONE}")).url, "key_env": "POOL"}}
        proxy = self.behind(tables, access_keys=(CLIENT,))
        for at in range(2):
            status, message = self.error(proxy, f"chat {at}")
            self.assertEqual(502, status)
            self.assertIn("The upstream main has no key that it accepts", message)
            self.assertIn("POOL", message)
            self.assertNotIn(ONE, message)
        self.set_keys(DEEPSEEK_API_KEY="sk-held-by-the-proxy")
        _, message = self.error(self.behind(tables, access_keys=(CLIENT,)))
        self.assertIn("POOL", message)

    def test_an_account_that_was_topped_up_is_asked_when_there_is_no_other(self) -> None:
        tables = {"main": {"base_url": self.main.url, "key_env": "MORE"}}
        proxy = self.behind(tables, access_keys=(CLIENT,))
        self.main.answer(Failure(402, "Insufficient Balance"))
        status, message = self.error(proxy)
        self.assertEqual((402, "Insufficient Balance. Top up the balance at main."), (status, message))
        self.assertEqual(200, self.ask(proxy).status)

    def test_an_upstream_without_a_key_is_not_asked_and_told(self) -> None:
        with self.assertLogs(level="WARNING") as logged:
            proxy = self.pooled("EMPTY", "NOWHERE")
            self.assertEqual(200, self.ask(proxy).status)
        self.assertEqual([0, 1], self.counts())
        for variable in ("EMPTY", "NOWHERE"):
            self.assertIn(f"[upstreams.main] gets no key from {variable}", "\n".join(logged.output))

    def test_no_answer_and_no_log_has_a_key_of_the_owner(self) -> None:
        self.main.answer(Failure(400, f"bad {ONE}", body=None))
        with self.assertLogs(level="DEBUG") as logged:
            reply = self.ask(self.pooled("POOL", verbose=True))
        self.assertEqual(400, reply.status)
        self.assertNotIn(ONE.encode(), reply.body)
        self.assertNotIn(ONE, "\n".join(logged.output))

    def test_a_reload_brings_refused_keys_back(self) -> None:
        proxy = self.pooled("MORE")
        self.main.answer(Failure(401))
        self.ask(proxy, "chat")
        self.assertEqual([1, 1], self.counts())
        proxy.server.reconfigure(proxy.server.config)
        self.ask(proxy, "chat")
        self.assertEqual([1, 2], self.counts(), "the chat stays where it is")
        self.ask(proxy, "a new chat")
        self.assertEqual([2, 2], self.counts())


class TestSpenders(KeysTestCase):
    """main is called with the client's key, spare with the owner's."""

    def mixed(self, **settings: Any) -> RunningProxy:
        tables = self.tables()
        tables["spare"]["key_env"] = "POOL"
        return self.behind(tables, **settings)

    def test_the_owners_keys_are_not_spent_for_strangers(self) -> None:
        proxy = self.mixed()
        self.ask(proxy, "the owner")
        self.main.answer(*[Failure(503, "busy")] * 2)
        self.assertEqual(503, self.ask(proxy, "a stranger", key="sk-stranger").status)
        self.assertEqual(200, self.ask(proxy, "the owner again").status)
        self.assertEqual([3, 1], self.counts())
        self.assertEqual(ONE, key_of(self.spare))

    def test_a_stranger_whose_model_is_refused_is_told_so_every_time(self) -> None:
        proxy = self.mixed()
        self.ask(proxy, "the owner")
        self.main.answer(*[Failure(404, "no such model")] * 2)
        for _ in range(2):
            self.assertEqual(404, self.ask(proxy, "a stranger", key="sk-stranger").status)
        self.assertEqual([3, 0], self.counts())

    def test_before_a_key_is_pinned_nobody_spends_them(self) -> None:
        self.main.answer(Failure(503, "busy"))
        self.assertEqual(503, self.ask(self.mixed()).status)
        self.assertEqual([1, 0], self.counts())

    def test_an_answer_for_the_owners_key_pins_nobody(self) -> None:
        proxy = self.mixed(ngrok=True)
        self.assertEqual(401, self.ask(proxy, model="spare/deepseek-flash").status)
        self.assertEqual(200, self.ask(proxy).status)
        self.assertEqual(200, self.ask(proxy, model="spare/deepseek-flash").status)
        self.assertEqual(401, self.ask(proxy, key="sk-stranger").status)

    def test_under_a_foreign_name_they_are_not_spent(self) -> None:
        proxy = self.mixed(access_keys=(CLIENT,))
        self.main.answer(Failure(503, "busy"))
        data = request_bytes(chat_body()).replace(b"Host: localhost", b"Host: evil.example")
        self.assertEqual(503, self.round_trip(proxy, data).status)
        data = request_bytes(chat_body(model="spare/deepseek-flash")).replace(b"Host: localhost", b"Host: evil.example")
        self.assertEqual(403, self.round_trip(proxy, data).status)
        self.assertEqual([1, 0], self.counts())

    def test_the_proxys_own_key_is_for_deepseek_alone(self) -> None:
        self.set_keys(DEEPSEEK_API_KEY="sk-held-by-the-proxy")
        tables = self.tables()
        tables["spare"]["host"] = "openrouter"
        with self.assertLogs(level="WARNING") as logged:
            proxy = self.behind(tables, access_keys=(CLIENT,))
            self.assertEqual(200, self.ask(proxy).status)
        self.assertEqual("sk-held-by-the-proxy", key_of(self.main))
        self.assertIn("[upstreams.spare] is not asked: it has no key_env", "\n".join(logged.output))
        self.main.answer(Failure(503, "busy"))
        self.assertEqual(503, self.ask(proxy).status)
        self.assertEqual(0, len(self.spare.seen))
