import threading
import unittest
from collections.abc import Mapping
from typing import Any
from unittest import mock

from deepseek_cursor_proxy import access as access_module
from deepseek_cursor_proxy.access import HELD_KEY, Access, Caller
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.access_keys import AccessKey
from deepseek_cursor_proxy.errors import BadRequest, Forbidden, ProxyError, StartupError, TooManyAttempts, Unauthorized
from deepseek_cursor_proxy.http1.messages import HttpRequest
from tests.support.threads import run_at_once

OWNER, FRIEND, STRANGER = "sk-the-key-of-the-owner", "sk-the-key-of-a-friend", "sk-the-key-of-a-stranger"
ANTHROPIC = "sk-ant-api03-the-key-of-the-owner-at-another-company"
CHAT = "/v1/chat/completions"
ROUTE: Any = {"gpt-*": {"base_url": "https://x", "key_env": "K"}}
FOREIGN: tuple[dict[str, str], ...] = (
    {"host": "evil.example"}, {"host": "EVIL.example.:9000"}, {"host": "localhost", "origin": "http://evil.example"},
    {"host": "127.0.0.1:9000", "origin": "null"}, {"host": "evil.example", "x_forwarded_host": "localhost"},
)  # fmt: skip
ALLOWED = 20  # wrong keys of one source until it has to wait
FORGIVEN = 3.0  # seconds until one of them is forgotten


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class AccessTest(unittest.TestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        # A log line of a rule that bites would be noise here; tests of these lines look at it themselves.
        self.log = self.enterContext(mock.patch.object(access_module, "_log"))

    def access(self, *, environment: Mapping[str, str] | None = None, **settings: Any) -> Access:
        return Access(ProxyConfig(**settings), environment=environment or {}, now=self.clock)

    def request(self, key: str | None = OWNER, client_ip: str = "127.0.0.1", **headers: str) -> HttpRequest:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            given["authorization"] = f"Bearer {key}"
        return HttpRequest("POST", CHAT, headers=given, read_body=self.fail, client_ip=client_ip)

    def admit_and_accept(self, access: Access, key: str, client_ip: str = "127.0.0.1") -> Caller:
        caller = access.admit(self.request(key, client_ip))
        access.record_accepted(caller)
        return caller

    def status(self, access: Access, key: str | None, client_ip: str = "127.0.0.1", **headers: str) -> int:
        try:
            access.admit(self.request(key, client_ip, **headers))
        except ProxyError as error:
            return error.status
        return 200

    def spend_status(self, access: Access, key: str, **headers: str) -> int:
        """The status of a request that would spend a key of the owner; 200 when it may."""
        try:
            access.check_spender(access.admit(self.request(key, **headers)))
        except ProxyError as error:
            return error.status
        return 200

    def exhaust(self, access: Access, client_ip: str = "127.0.0.1") -> None:
        for number in range(ALLOWED):
            self.assertEqual(401, self.status(access, f"{STRANGER}-{number}", client_ip))
        self.assertEqual(429, self.status(access, STRANGER, client_ip))

    def refuse_strangers(self, access: Access, count: int = ALLOWED) -> None:
        """DeepSeek refuses the keys of so many strangers, who were all admitted before."""
        for caller in [access.admit(self.request(f"{STRANGER}-{number}")) for number in range(count)]:
            access.record_refused(caller)

    def logged_line(self) -> str:
        self.log.info.assert_called_once()
        template, *values = self.log.info.call_args.args
        return str(template % tuple(values))


class TestCredentials(AccessTest):
    def test_a_key_is_read_from_authorization_and_x_api_key(self) -> None:
        for headers, expected in (
            ({"authorization": "Bearer sk-a"}, "sk-a"), ({"authorization": "bearer   sk-a "}, "sk-a"),
            ({"api_key": " sk-a "}, "sk-a"), ({"authorization": "Bearer sk-a", "api_key": "sk-a"}, "sk-a"),
            ({"authorization": "Bearer ", "api_key": "sk-a"}, "sk-a"),
            ({"authorization": "Basic dTpw", "api_key": "sk-a"}, "sk-a"),
            ({"authorization": "Bearer " + "k" * 4096}, "k" * 4096),
        ):  # fmt: skip
            self.assertEqual(expected, self.access().admit(self.request(None, **headers)).credential, headers)

    def test_a_malformed_key_is_no_key(self) -> None:
        for headers in (
            {}, {"authorization": ""}, {"authorization": "Bearer"}, {"authorization": "Bearer  "},
            {"authorization": "Basic dTpw"}, {"authorization": "sk-a"}, {"authorization": "Bearer sk-a sk-b"},
            {"authorization": "Bearer sk-\x7f"}, {"authorization": "Bearer sk-é"},
            {"authorization": "Bearer sk-é", "api_key": "sk-é"}, {"api_key": "k" * 4097},
        ):  # fmt: skip
            with self.subTest(headers), self.assertRaisesRegex(Unauthorized, "^No API key"):
                self.access().admit(self.request(None, **headers))

    def test_the_example_of_a_page_in_place_of_a_key_is_named(self) -> None:
        """The error must not tell its reader to send what was sent."""
        example = "sk-…".encode().decode("latin-1")
        with self.assertRaisesRegex(Unauthorized, "What came is not one, perhaps the example") as caught:
            self.access().admit(self.request(example))
        self.assertNotIn("…", str(caught.exception))

    def test_a_different_key_in_api_key_is_refused(self) -> None:
        for settings in ({}, {"access_keys": [OWNER, FRIEND]}, {"ngrok": True}):
            with self.assertRaises(BadRequest) as caught:
                self.access(**settings).admit(self.request(OWNER, api_key=FRIEND))
            self.assertEqual("two_keys", caught.exception.code)
            self.assertNotIn("sk-", caught.exception.message)

    def test_a_key_of_anthropic_gives_way_to_any_other(self) -> None:
        for path in (CHAT, "/v1/responses", "/v1/messages"):
            for headers in (
                {"authorization": f"Bearer {ANTHROPIC}", "x_api_key": OWNER},
                {"authorization": f"Bearer {OWNER}", "x_api_key": ANTHROPIC},
                {"authorization": f"Bearer {OWNER}", "api_key": ANTHROPIC},
                {"x_api_key": ANTHROPIC.upper(), "api_key": OWNER},
            ):
                with self.subTest(path, **headers):
                    request = self.request(None, **headers)._replace(path=path)
                    self.assertEqual(OWNER, self.access().admit(request).credential)

    def test_a_key_of_anthropic_alone_is_refused_with_what_to_unset(self) -> None:
        for headers in (
            {"authorization": f"Bearer {ANTHROPIC}"}, {"authorization": f'Bearer "{ANTHROPIC}"'},
            {"x_api_key": ANTHROPIC}, {"x_api_key": f"'{ANTHROPIC}'"}, {"api_key": ANTHROPIC},
        ):  # fmt: skip
            for settings in ({}, {"access_keys": [ANTHROPIC]}):
                with self.assertRaises(Unauthorized) as caught:
                    self.access(**settings).admit(self.request(None, **headers))
                self.assertIn("Set ANTHROPIC_AUTH_TOKEN", caught.exception.message)
                self.assertIn("unset ANTHROPIC_API_KEY", caught.exception.message)
                self.assertNotIn(ANTHROPIC, caught.exception.message)

    def test_a_key_of_anthropic_is_not_held_for_deepseek(self) -> None:
        with self.assertRaisesRegex(StartupError, "key of Anthropic"):
            self.access(access_keys=[OWNER], environment={HELD_KEY: ANTHROPIC})

    def test_the_losing_key_of_two_headers_gives_no_access(self) -> None:
        access = self.access(access_keys=[OWNER])
        message = self.request(STRANGER, x_api_key=OWNER)._replace(path="/v1/messages")
        for request in (self.request(STRANGER, x_api_key=OWNER), message):
            with self.assertRaisesRegex(Unauthorized, "not among the access keys"):
                access.admit(request)
        # Nor does one that cannot be read give its place to the other.
        with self.assertRaisesRegex(Unauthorized, "^No API key"):
            access.admit(self.request("sk-é", x_api_key=OWNER))

    def test_a_printed_caller_has_no_key(self) -> None:
        self.assertNotIn(OWNER, repr(self.access().admit(self.request())))


class TestListedKeys(AccessTest):
    def test_only_access_keys_are_served(self) -> None:
        access = self.access(access_keys=[OWNER, AccessKey.of(FRIEND).line])
        table = {OWNER: 200, FRIEND: 200, STRANGER: 401, OWNER[:-1]: 401, OWNER + "x": 401, OWNER.upper(): 401}
        # A digest is not a key: a reader of the configuration file cannot use it.
        table |= {AccessKey.of(OWNER).line: 401, AccessKey.of(OWNER).digest.hex(): 401}
        for key, status in table.items():
            self.assertEqual(status, self.status(access, key), key)

    def test_every_access_key_is_compared_whichever_matches(self) -> None:
        keys = [f"{OWNER}-{number}" for number in range(5)]
        access = self.access(access_keys=keys)
        for key in (keys[0], keys[4], STRANGER):
            with mock.patch("hmac.compare_digest", side_effect=lambda a, b: a == b) as compared:
                self.status(access, key)
            self.assertEqual(5, compared.call_count)

    def test_the_held_key_is_used_with_access_keys_only(self) -> None:
        environment = {"DEEPSEEK_API_KEY": " sk-held\n"}
        self.assertEqual("sk-held", self.access(access_keys=[OWNER], environment=environment).held_key)
        for settings in ({}, {"ngrok": True}):
            self.assertIsNone(self.access(environment=environment, **settings).held_key)
        for value in ("", " "):
            self.assertIsNone(self.access(access_keys=[OWNER], environment={"DEEPSEEK_API_KEY": value}).held_key)
        with self.assertRaises(StartupError) as caught:
            self.access(access_keys=[OWNER], environment={"DEEPSEEK_API_KEY": "sk-a b"})
        self.assertNotIn("sk-a", str(caught.exception))

    def test_the_refusal_of_a_missing_key_says_which_key_to_send(self) -> None:
        for environment, words in (({}, "your DeepSeek key"), ({"DEEPSEEK_API_KEY": "sk-held"}, "an access key")):
            with self.assertRaisesRegex(Unauthorized, words):
                self.access(access_keys=[OWNER], environment=environment).admit(self.request(None))


class TestPinning(AccessTest):
    def test_a_key_is_pinned_when_other_machines_can_reach_the_proxy(self) -> None:
        for can_pin, settings in (
            (False, {}), (False, {"host": "localhost"}), (False, {"host": "::1"}), (True, {"ngrok": True}),
            (True, {"host": "0.0.0.0"}), (True, {"host": "::"}), (True, {"host": "192.168.1.7"}),
            (True, {"host": "127.0.0.1.example"}), (True, {"public_hosts": ["proxy.example.com"]}),
            (False, {"access_keys": [OWNER, FRIEND], "ngrok": True}),
        ):  # fmt: skip
            self.assertEqual(can_pin, self.access(**settings).can_pin, settings)

    def test_the_first_key_that_deepseek_accepts_is_pinned(self) -> None:
        access = self.access(ngrok=True)
        # Being let in is not enough, and a refusal by DeepSeek even less.
        access.admit(self.request(STRANGER))
        access.record_refused(access.admit(self.request(STRANGER)))
        self.admit_and_accept(access, OWNER)
        for key, status in ((OWNER, 200), (FRIEND, 401), (STRANGER, 401), (OWNER, 200)):
            self.assertEqual(status, self.status(access, key))
        with self.assertRaisesRegex(Unauthorized, "used first since it started.*restart.*access_keys"):
            access.admit(self.request(FRIEND))

    def test_a_caller_admitted_before_another_key_was_pinned_is_refused(self) -> None:
        access = self.access(ngrok=True)
        early = access.admit(self.request(STRANGER))
        self.admit_and_accept(access, OWNER)
        with self.assertRaises(Unauthorized):
            access.check(early)

    def test_of_many_keys_accepted_at_once_one_is_pinned(self) -> None:
        for _ in range(20):
            access = self.access(ngrok=True)
            callers = [access.admit(self.request(f"{STRANGER}-{number}")) for number in range(8)]
            together = threading.Barrier(len(callers))

            def accepted(caller: Caller, access: Access = access, together: threading.Barrier = together) -> None:
                together.wait()
                access.record_accepted(caller)

            run_at_once(accepted, callers)
            statuses = [self.status(access, caller.credential) for caller in callers]
            self.assertEqual([200] + [401] * 7, sorted(statuses))

    def test_pinning_is_logged_once_with_the_digest(self) -> None:
        access = self.access(ngrok=True)
        for key in (OWNER, OWNER):
            self.admit_and_accept(access, key)
        self.assertIn(f"only the key {AccessKey.of(OWNER)} is served", self.logged_line())
        self.assertNotIn(OWNER, self.logged_line())

    def test_no_key_of_the_owner_is_spent_before_one_is_pinned(self) -> None:
        for settings in ({}, {"ngrok": True}):
            with self.subTest(settings):
                access = self.access(passthrough=ROUTE, **settings)
                self.assertEqual(401, self.spend_status(access, OWNER))
                self.admit_and_accept(access, OWNER)
                self.assertEqual(200, self.spend_status(access, OWNER))
                self.assertEqual(401, self.spend_status(access, STRANGER))
        access = self.access(passthrough=ROUTE, access_keys=[OWNER])
        self.assertEqual([200, 401], [self.spend_status(access, key) for key in (OWNER, STRANGER)])

    def test_a_request_under_a_foreign_host_spends_no_key_of_the_owner(self) -> None:
        for settings in ({"access_keys": [OWNER]}, {"ngrok": True}, {}):
            access = self.access(passthrough=ROUTE, **settings)
            self.admit_and_accept(access, OWNER)
            for headers in FOREIGN:
                with self.subTest(settings, **headers):
                    self.assertEqual(200, self.status(access, OWNER, **headers))
                    self.assertEqual(403, self.spend_status(access, OWNER, **headers))
            for headers in ({}, {"host": "localhost:9000", "x_forwarded_host": "evil.example"}):
                self.assertEqual(200, self.spend_status(access, OWNER, **headers))

    def test_a_request_under_a_foreign_host_does_not_spend_the_held_key(self) -> None:
        access = self.access(environment={HELD_KEY: "sk-held"}, access_keys=[OWNER])
        access.check_call(access.admit(self.request(OWNER, host="localhost")))
        with self.assertRaisesRegex(Forbidden, r"Host: evil\.example.*public_hosts"):
            access.check_call(access.admit(self.request(OWNER, host="evil.example")))
        own = self.access(access_keys=[OWNER])
        own.check_call(own.admit(self.request(OWNER, host="evil.example")))

    def test_a_request_under_a_foreign_host_pins_no_key(self) -> None:
        access = self.access(ngrok=True)
        for headers in FOREIGN:
            access.record_accepted(access.admit(self.request(STRANGER, **headers)))
        self.log.warning.assert_called_once()
        self.assertIn("public_hosts", self.log.warning.call_args.args[0])
        self.admit_and_accept(access, OWNER)
        self.assertEqual((200, 401), (self.status(access, OWNER), self.status(access, STRANGER)))

    def test_the_tunnels_host_and_public_hosts_are_not_foreign(self) -> None:
        access = self.access(passthrough=ROUTE, access_keys=[OWNER], public_hosts=["proxy.example.com"])
        for host, status in (("proxy.example.com", 200), ("a.ngrok-free.app", 403)):
            self.assertEqual(status, self.spend_status(access, OWNER, host=host))
        access.set_tunnel_host("a.ngrok-free.app")
        reloaded = Access(ProxyConfig(passthrough=ROUTE, access_keys=[OWNER]), access, environment={})
        for each in (access, reloaded):
            self.assertEqual(200, self.spend_status(each, OWNER, host="A.ngrok-free.app"))
        access.set_tunnel_host("b.ngrok-free.app")
        self.assertEqual(403, self.spend_status(access, OWNER, host="a.ngrok-free.app"))


class TestRateLimit(AccessTest):
    def test_wrong_access_keys_make_their_source_wait(self) -> None:
        access = self.access(access_keys=[OWNER])
        self.exhaust(access)
        with self.assertRaises(TooManyAttempts) as caught:
            access.admit(self.request(STRANGER))
        self.assertEqual((429, 3), (caught.exception.status, caught.exception.retry_after))
        self.clock.now += FORGIVEN - 0.1
        self.assertEqual(429, self.status(access, STRANGER))
        self.clock.now += 0.2
        self.assertEqual([401, 429], [self.status(access, STRANGER), self.status(access, STRANGER)])
        self.clock.now += FORGIVEN * ALLOWED
        self.exhaust(access)

    def test_guesses_at_the_key_that_spends_the_owners_make_their_source_wait(self) -> None:
        access = self.access(passthrough=ROUTE)
        for key in (OWNER, FRIEND):
            self.admit_and_accept(access, key)
        for number in range(ALLOWED):
            self.assertEqual(401, self.spend_status(access, f"{STRANGER}-{number}"))
        self.assertEqual([429, 200, 401], [self.spend_status(access, key) for key in (STRANGER, OWNER, FRIEND)])
        self.assertEqual(200, self.status(access, FRIEND))

    def test_a_request_under_a_foreign_name_is_no_guess(self) -> None:
        access = self.access(passthrough=ROUTE)
        self.admit_and_accept(access, OWNER)
        for number in range(ALLOWED + 1):
            self.assertEqual(403, self.spend_status(access, f"{STRANGER}-{number}", host="evil.example"))

    def test_keys_that_deepseek_refuses_make_their_source_wait(self) -> None:
        access = self.access()
        self.refuse_strangers(access)
        self.assertEqual([429, 429], [self.status(access, STRANGER), self.status(access, OWNER)])
        self.clock.now += FORGIVEN
        self.assertEqual(200, self.status(access, OWNER))

    def test_a_key_that_was_accepted_before_never_waits(self) -> None:
        access = self.access()
        self.admit_and_accept(access, OWNER)
        self.refuse_strangers(access)
        self.assertEqual((200, 429), (self.status(access, OWNER), self.status(access, FRIEND)))

    def test_a_revoked_key_that_was_accepted_before_makes_no_source_wait(self) -> None:
        access = self.access()
        owner = self.admit_and_accept(access, OWNER)
        for _ in range(2 * ALLOWED):
            access.record_refused(owner)
        self.assertEqual(200, self.status(access, FRIEND))

    def test_a_long_access_key_never_waits(self) -> None:
        """A stranger who began first, in the same tunnel, must not keep the owner out."""
        access = self.access(access_keys=[OWNER, AccessKey.of(FRIEND).line])
        self.exhaust(access)
        self.assertEqual([200, 200, 429], [self.status(access, key) for key in (OWNER, FRIEND, STRANGER)])

    def test_a_short_access_key_waits_until_it_was_accepted_once(self) -> None:
        access = self.access(access_keys=["secret"])
        self.exhaust(access)
        self.assertEqual(429, self.status(access, "secret"))
        self.clock.now += FORGIVEN
        keys = ("secret", STRANGER, STRANGER, "secret")
        self.assertEqual([200, 401, 429, 200], [self.status(access, key) for key in keys])

    def test_a_request_without_a_key_is_no_attempt(self) -> None:
        access = self.access(access_keys=[OWNER])
        for _ in range(2 * ALLOWED):
            self.assertEqual(401, self.status(access, None))
        self.exhaust(access)

    def test_an_access_key_that_deepseek_refuses_makes_no_source_wait(self) -> None:
        access = self.access(access_keys=[OWNER])
        for _ in range(2 * ALLOWED):
            access.record_refused(access.admit(self.request(OWNER)))
        self.assertEqual(401, self.status(access, STRANGER))

    def test_many_wrong_keys_at_once_do_not_add_up_to_hours(self) -> None:
        access = self.access()
        self.refuse_strangers(access, 1000)
        self.clock.now += FORGIVEN
        self.assertEqual(200, self.status(access, OWNER))

    def test_wrong_keys_are_counted_per_source(self) -> None:
        for one, two, is_same in (
            ("192.0.2.1", "192.0.2.1", True), ("192.0.2.1", "192.0.2.2", False),
            ("192.0.2.1", "::ffff:192.0.2.1", True), ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
            ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True), ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
            ("fe80::1%eth0", "fe80::2%eth0", True), ("", "", True), ("somewhere", "elsewhere", False),
        ):  # fmt: skip
            with self.subTest(one=one, two=two):
                access = self.access(access_keys=[OWNER])
                self.exhaust(access, one)
                self.assertEqual(429 if is_same else 401, self.status(access, STRANGER, two))

    def test_forwarded_headers_do_not_change_the_source(self) -> None:
        access = self.access(access_keys=[OWNER])
        self.exhaust(access)
        for name in (
            "x_forwarded_for", "x_real_ip", "forwarded", "host", "via", "cf_connecting_ip", "origin", "cookie",
        ):  # fmt: skip
            for value in ("127.0.0.1", "localhost", "192.0.2.77", "for=192.0.2.77"):
                self.assertEqual(429, self.status(access, STRANGER, **{name: value}))

    def test_remembered_sources_and_keys_are_limited(self) -> None:
        self.enterContext(mock.patch.multiple(access_module, _MAX_NETWORKS=3, _MAX_ACCEPTED=3))
        access = self.access(access_keys=[OWNER])
        for number in range(50):
            self.status(access, STRANGER, f"192.0.2.{number}")
        self.exhaust(access, "192.0.2.99")
        self.assertEqual(3, len(access._state._failures))
        access = self.access()
        for number in range(50):
            self.admit_and_accept(access, f"{FRIEND}-{number}")
        self.assertEqual(3, len(access._state._accepted))

    def test_too_many_wrong_keys_are_logged_once_until_they_are_forgiven(self) -> None:
        access = self.access(access_keys=[OWNER])
        for _ in range(2):
            self.exhaust(access)
            for _ in range(10):
                self.clock.now += FORGIVEN
                self.status(access, STRANGER)
            self.log.warning.assert_called_once()
            self.assertIn("127.0.0.1", self.log.warning.call_args.args)
            self.log.warning.reset_mock()
            self.clock.now += FORGIVEN * ALLOWED


class TestKnownCallers(AccessTest):
    """Of whom anything may be kept."""

    def knows(self, access: Access, key: str, digest: str = "0123456789ab") -> bool:
        return access.knows(access.admit(self.request(key)), digest)

    def test_a_caller_is_known_once_an_upstream_has_accepted_its_key(self) -> None:
        access = self.access()
        self.assertFalse(self.knows(access, OWNER))
        self.admit_and_accept(access, OWNER)
        self.assertEqual([True, False], [self.knows(access, key) for key in (OWNER, STRANGER)])

    def test_a_listed_key_is_known_at_once(self) -> None:
        self.assertTrue(self.knows(self.access(access_keys=[OWNER]), OWNER))

    def test_a_caller_that_had_an_answer_in_an_earlier_run_is_known_also_after_a_reload(self) -> None:
        former = Access(ProxyConfig(), environment={})
        former.ask_before({"of-the-owner"}.__contains__)
        for access in (former, Access(ProxyConfig(), former, environment={})):
            self.assertTrue(self.knows(access, OWNER, "of-the-owner"))
            self.assertFalse(self.knows(access, STRANGER, "of-a-stranger"))


class TestReload(AccessTest):
    """New settings while the proxy runs: what is known about keys stays known."""

    def reload(self, former: Access, **settings: Any) -> Access:
        return Access(ProxyConfig(**settings), former, environment={})

    def test_a_reload_keeps_the_pinned_key(self) -> None:
        former = self.access(ngrok=True)
        self.admit_and_accept(former, OWNER)
        access = self.reload(former, ngrok=True)
        self.assertEqual((200, 401), (self.status(access, OWNER), self.status(access, STRANGER)))

    def test_a_call_from_before_a_reload_pins_its_key(self) -> None:
        former = self.access(ngrok=True)
        caller = former.admit(self.request(OWNER))
        access = self.reload(former, ngrok=True)
        former.record_accepted(caller)
        self.assertEqual(401, self.status(access, STRANGER))

    def test_a_reload_keeps_waits_and_accepted_keys(self) -> None:
        former = self.access()
        self.admit_and_accept(former, OWNER)
        self.refuse_strangers(former)
        access = self.reload(former)
        self.assertEqual((200, 429), (self.status(access, OWNER), self.status(access, FRIEND)))

    def test_access_keys_after_a_reload_replace_the_pinned_key(self) -> None:
        former = self.access(ngrok=True)
        self.admit_and_accept(former, OWNER)
        access = self.reload(former, ngrok=True, access_keys=[FRIEND])
        self.assertEqual((401, 200), (self.status(access, OWNER), self.status(access, FRIEND)))


class NamedKeysTest(AccessTest):
    def test_both_keys_of_a_name_are_served_and_have_its_name(self) -> None:
        access = self.access(keys={"ann": {"key": [OWNER, FRIEND]}})
        for key in (OWNER, FRIEND):
            named = access.admit(self.request(key)).named
            assert named is not None
            self.assertEqual("ann", named.name)
        self.assertEqual(401, self.status(access, STRANGER))

    def test_an_expired_key_is_refused_in_words_and_is_no_guess(self) -> None:
        expired: Any = {"key": [OWNER, FRIEND], "expires": "2001-09-09T01:46:40Z"}
        access = self.access(keys={"ann": expired, "ben": {"key": "sk-the-key-of-ben"}})
        with mock.patch("time.time", return_value=1_000_000_000.0):
            for _ in range(2 * ALLOWED):
                with self.assertRaises(Unauthorized) as caught:
                    access.admit(self.request(OWNER))
            self.assertEqual(200, self.status(access, "sk-the-key-of-ben"))
        self.assertIn("The key of ann expired at 2001-09-09 01:46 UTC", caught.exception.message)
        self.assertEqual("key_expired", caught.exception.code)
        with mock.patch("time.time", return_value=999_999_999.0):
            self.assertEqual(200, self.status(access, OWNER))

    def test_a_named_key_is_called_with_the_key_in_its_variable(self) -> None:
        keys: Any = {"ann": {"key": FRIEND, "upstream_key_env": "ANN_KEY"}, "ben": {"key": OWNER}}
        access = self.access(keys=keys, environment={"ANN_KEY": "sk-of-ann-at-deepseek", HELD_KEY: "sk-held"})
        self.assertEqual("sk-of-ann-at-deepseek", access.upstream_key(access.admit(self.request(FRIEND))))
        self.assertEqual("sk-held", access.upstream_key(access.admit(self.request(OWNER))))

    def test_a_variable_without_a_key_is_not_the_callers_fault(self) -> None:
        access = self.access(keys={"ann": {"key": FRIEND, "upstream_key_env": "ANN_KEY"}})
        with self.assertRaises(ProxyError) as caught:
            access.upstream_key(access.admit(self.request(FRIEND)))
        self.assertEqual(502, caught.exception.status)
        self.assertIn("ANN_KEY", caught.exception.message)
        self.assertEqual(403, self.call_status(access, FRIEND, host="evil.example"))

    def call_status(self, access: Access, key: str, **headers: str) -> int:
        try:
            access.check_call(access.admit(self.request(key, **headers)))
        except ProxyError as error:
            return error.status
        return 200
