"""Usage over real sockets: what the console, the ledger and the commands say about requests that a client made."""

import contextlib
import csv
import io
import json
import logging
import os
import re
import stat
import time
from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any
from unittest import mock

from deepseek_cursor_proxy import cli
from deepseek_cursor_proxy.config.loaded_config import LoadedConfig
from deepseek_cursor_proxy.features.dashboard.service import AdminService
from deepseek_cursor_proxy.features.request_log.feature import RequestLog
from deepseek_cursor_proxy.features.usage.feature import Usage
from deepseek_cursor_proxy.features.usage.ledger import WaitingRequests
from deepseek_cursor_proxy.proxy import ADMIN_ROUTES
from deepseek_cursor_proxy.storage.database import open_read_only
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import Answer
from tests.support.admin_client import fetch
from tests.support.features import needs
from tests.support.harness import RunningProxy, SocketTestCase, chat_body, request_bytes
from tests.support.histories import TOOLS
from tests.support.polling import wait_until
from tests.support.raw_upstream import RawUpstream, ScriptedReply
from tests.unit.features.usage.test_ledger import record

CONSOLE = "deepseek_cursor_proxy.observers.console"


class UsageTestCase(SocketTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.path = self.folder / "store.sqlite3"
        ours = {name: value for name, value in os.environ.items() if not name.startswith("DEEPSEEK")}
        ours |= {"HOME": str(self.folder), "USERPROFILE": str(self.folder), "COLUMNS": "100"}
        ours["DEEPSEEK_CURSOR_PROXY_REASONING_CONTENT_PATH"] = str(self.path)
        ours["DEEPSEEK_CURSOR_PROXY_BASE_URL"] = self.fake.url
        self.enterContext(mock.patch.dict(os.environ, ours, clear=True))

    def with_file(self, **settings: Any) -> RunningProxy:
        return self.proxy(ReasoningStore(self.path), **settings)

    def run_command(self, *arguments: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main(arguments)
        return code, out.getvalue(), err.getvalue()

    def output(self, *arguments: str) -> str:
        code, out, err = self.run_command(*arguments)
        self.assertEqual((0, ""), (code, err))
        return out


class TestUsage(UsageTestCase):
    def test_a_running_proxy_writes_what_the_command_prints(self) -> None:
        proxy = self.with_file()
        for body in (chat_body("a"), chat_body("b", model="deepseek-flash", stream=True)):
            self.assertEqual(200, self.round_trip(proxy, body).status)
        self.round_trip(proxy, request_bytes(b"{"))
        wait_until(lambda: json.loads(self.output("usage", "--today", "--json"))["total"]["requests"] == 3)
        found = json.loads(self.output("usage", "--by", "model", "--json"))
        self.assertEqual(["deepseek-v4-pro", "deepseek-flash", "-"], [group["name"] for group in found["groups"]])
        self.assertEqual([0, 0, 1], [group["failed"] for group in found["groups"]])
        self.assertGreater(found["groups"][0]["cost"], found["groups"][1]["cost"])
        proxy.close()
        head, _, names, *lines = self.output("usage", "--by", "model").splitlines()
        self.assertRegex(head, r"^Usage from .* by model; costs are estimates\.$")
        self.assertEqual("model requests failed input cached output thinking cost saved", " ".join(names.split()))
        self.assertEqual(["deepseek-v4-pro", "deepseek-flash", "-", "total"], [line.split()[0] for line in lines])
        self.assertEqual(1, len({len(line) for line in (names, *lines)}))
        rows = list(csv.DictReader(io.StringIO(self.output("usage", "--week", "--by", "api", "--csv"))))
        self.assertEqual([("chat", "3", "USD")], [(row["api"], row["requests"], row["currency"]) for row in rows])

    def test_a_request_is_in_the_usage_at_once(self) -> None:
        proxy = self.with_file(reasoning_content_path=self.path, admin_key="sk-only-its-digest-is-known", admin_port=0)
        service = AdminService(proxy.server, LoadedConfig(proxy.server.config, {}), self.folder, ADMIN_ROUTES)
        self.addCleanup(service.close)
        with mock.patch.object(WaitingRequests, "seconds_between_batches", 600):
            self.round_trip(proxy, chat_body("a"))
            # The answer may be here before the event that it is over.
            wait_until(lambda: json.loads(self.output("usage", "--json"))["total"]["requests"] == 1)
            self.round_trip(proxy, chat_body("b"))
            key = {"Authorization": "Bearer sk-only-its-digest-is-known"}
            days = iter(range(1, 1000))

            def requests() -> int:
                # Another period every time: a report serves for some seconds.
                found = fetch(service.url, f"/api/usage?since={date.today() - timedelta(next(days))}", key)
                return int(json.loads(found.body)["total"]["requests"])

            wait_until(lambda: requests() == 2)

    def test_a_subagent_goes_to_its_model_and_usage_shows_what_that_saves(self) -> None:
        proxy = self.with_file(subagent_model="deepseek-flash")
        body = chat_body("a", model="deepseek-v4-pro")
        for headers in ([], ["X-Claude-Code-Agent-Id: a1"]):
            reply = self.round_trip(proxy, request_bytes(body, headers=headers))
            self.assertEqual("deepseek-v4-pro", json.loads(reply.body)["model"])
        self.assertEqual(["deepseek-v4-pro", "deepseek-flash"], [each["model"] for each in self.fake.accepted])
        proxy.close()
        switched = json.loads(self.output("usage", "--json"))["switched"]
        self.assertEqual(1, switched["requests"])
        self.assertGreater(switched["saved"], 0)
        self.assertRegex(
            self.output("usage"), r"\nRequests .*: 1\. They cost <?\$[\d.]+ instead of <?\$[\d.]+, .* saved\.\n"
        )

    def test_without_the_setting_a_subagent_gets_what_it_asks_for(self) -> None:
        body = chat_body("a", model="deepseek-v4-pro")
        self.round_trip(self.with_file(), request_bytes(body, headers=["X-Claude-Code-Agent-Id: a1"]))
        self.assertEqual("deepseek-v4-pro", self.fake.accepted[-1]["model"])
        self.assertNotIn("instead of", self.output("usage"))

    def test_no_name_is_a_formula_for_a_spreadsheet_and_numbers_stay_numbers(self) -> None:
        names = ("=1+1", "+1", "-1", "@SUM(1)", "＝1", "\t=1", "\r=1", " =1", '=HYPERLINK("http://x","y")', "a=1", "-x")
        proxy = self.with_file()
        for name in ("", *names):
            proxy.server.services().get(Usage).ledger.add(record(1, time.time(), model=name))
        proxy.close()
        rows = list(csv.DictReader(io.StringIO(self.output("usage", "--by", "model", "--csv"))))
        found = {row.pop("model") for row in rows}
        self.assertEqual([], [name for name in found if name.strip()[0] in "=+-@＝" and name != "-"])
        self.assertLessEqual({"'=1+1", "'@SUM(1)", "\\t=1", "a=1", "-"}, found)
        for row in rows:
            self.assertRegex("".join(value for name, value in row.items() if name != "currency"), r"^[0-9.e-]*$")
        self.assertIn("=1+1", self.output("usage", "--by", "model", "--json"))

    def test_without_usage_the_command_says_so_and_why(self) -> None:
        missing = f"There is no store at {self.path}: the proxy has not"
        self.assertRegex(self.output("usage"), rf"^No usage from .* {re.escape(missing)}")
        self.with_file().close()
        self.assertIn("The proxy records each request when it ends.", self.output("usage", "--today"))
        with mock.patch.dict(os.environ, {"DEEPSEEK_CURSOR_PROXY_REASONING_CONTENT_PATH": ":memory:"}):
            self.assertIn("The store is in memory", self.output("usage"))

    def test_a_bad_flag_or_a_file_of_another_program_is_one_line(self) -> None:
        days = (("--since", day) for day in ("soon", "9999-12-31", "0001-01-01"))
        for words in (*days, ("--by", "mood"), ("--today", "--week"), ("--json", "--csv")):
            code, out, err = self.run_command("usage", *words)
            self.assertEqual((2, "", 1), (code, out, err.count("\n")), err)
        self.path.write_bytes(b"a letter to my aunt" * 100)
        code, _, err = self.run_command("usage")
        self.assertEqual(2, code)
        self.assertIn("it is not an SQLite database and is left alone", err)

    def test_reading_changes_no_file_and_works_in_a_folder_that_cannot_be_written(self) -> None:
        proxy = self.with_file()
        self.round_trip(proxy, chat_body())
        proxy.close()
        files = {path.name: path.read_bytes() for path in self.folder.iterdir() if path.is_file()}
        self.folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
        try:
            self.assertIn("deepseek-v4-pro", self.output("usage", "--by", "model"))
        finally:
            self.folder.chmod(stat.S_IRWXU)
        self.assertEqual(files, {path.name: path.read_bytes() for path in self.folder.iterdir() if path.is_file()})
        if os.name == "posix":
            self.assertEqual(0o600, stat.S_IMODE(self.path.stat().st_mode))

    def test_no_prompt_answer_or_key_is_in_the_ledger(self) -> None:
        self.fake.answer(Answer(reasoning="planted-thought", content="planted-answer"))
        proxy = self.with_file()
        body = chat_body("planted-prompt", tools=TOOLS, user="planted-user")
        self.round_trip(proxy, request_bytes(body, key="sk-planted-key"))
        proxy.close()
        with open_read_only(self.path) as connection:
            for table in ("usage", "usage_days"):
                rows = connection.execute(f"SELECT * FROM {table}").fetchall()
                self.assertEqual(1, len(rows))
                self.assertNotIn("planted", str(rows))

    def test_the_console_names_the_cost_and_a_lost_cache_with_its_reason(self) -> None:
        proxy = self.with_file(upstream_model="deepseek-v4-pro")
        filling = "word " * 2000
        history: list[dict[str, Any]] = [{"role": "system", "content": filling}, {"role": "user", "content": "one"}]
        with self.assertLogs(CONSOLE, logging.INFO) as logs:
            for words in ("two", "three"):
                answer = self.round_trip(proxy, {"messages": history}).value["choices"][0]["message"]
                history += [answer, {"role": "user", "content": words}]
            history[0] = {"role": "system", "content": f"Today. {filling}"}
            self.round_trip(proxy, {"messages": history})
        last = [line for line in logs.output if "└" in line]
        self.assertRegex(last[0], r" s · \$\d\.\d+$")
        self.assertNotIn("was", last[1])
        self.assertRegex(last[2], r"\(\d+ % cached, was \d+ %\) .* prefix lost: system prompt changed")
        proxy.close()
        total = json.loads(self.output("usage", "--json"))["total"]
        self.assertGreater(total["saved"], 0)
        self.assertGreater(total["divergence_cost"], 0)
        self.assertLess(total["divergence_cost"], total["cost"])
        self.assertIn("Of this, <$0.01 was", self.output("usage").splitlines()[-1])
        _, _, names, *lines = self.output("usage", "--by", "cause").splitlines()
        self.assertEqual("lost", names.split()[-1])
        [cause] = [line for line in lines if line.startswith("system prompt changed")]
        self.assertEqual("1", cause.split()[3])
        self.assertNotEqual("$0", cause.split()[-1])

    @needs("choices")
    def test_several_answers_are_one_request_with_the_cost_of_all(self) -> None:
        proxy = self.with_file()
        self.round_trip(proxy, chat_body())
        self.round_trip(proxy, chat_body(n=3))
        one, three = reversed(proxy.server.services().get(RequestLog).ended())
        assert one.cost is not None
        assert three.cost is not None
        assert one.tokens is not None
        assert three.tokens is not None
        self.assertEqual((3 * one.tokens.prompt, 3 * one.tokens.output), (three.tokens.prompt, three.tokens.output))
        self.assertGreater(three.cost.amount, 1.5 * one.cost.amount)
        proxy.close()
        self.assertEqual(2, json.loads(self.output("usage", "--json"))["total"]["requests"])

    def test_an_unknown_model_has_no_cost_and_says_so(self) -> None:
        proxy = self.with_file(upstream_host="vllm", upstream_model="deepseek-v4-pro")
        with self.assertLogs(CONSOLE, logging.INFO) as logs:
            self.round_trip(proxy, chat_body())
        self.assertTrue(logs.output[-1].endswith("· cost unknown"), logs.output)
        proxy.close()
        text = self.output("usage")
        self.assertIn(" unknown ", text)
        self.assertIn("Requests of unknown cost, which are not in the sum: 1;", text)

    def test_prices_of_the_settings_hold_after_a_reload(self) -> None:
        proxy = self.with_file()
        self.round_trip(proxy, chat_body())
        prices = {"deepseek-v4-pro": {"miss": 1000.0, "hit": 1000.0, "output": 1000.0}}
        config = proxy.server.config
        proxy.server.reconfigure(type(config)(**{**vars(config), "prices": prices}))
        self.round_trip(proxy, chat_body())
        proxy.close()
        with open_read_only(self.path) as connection:
            rows = connection.execute(
                "SELECT cost, price_version, hit + miss + output FROM usage ORDER BY id"
            ).fetchall()
        self.assertEqual(["2026-08-23", "settings"], [version for _, version, _ in rows])
        self.assertAlmostEqual(rows[1][2] / 1000, rows[1][0])
        self.assertLess(rows[0][0], rows[1][0] / 100)


class TestBalance(UsageTestCase):
    def balance(self, key: str = "sk-test") -> tuple[int, str, str]:
        with mock.patch.dict(os.environ, {"DEEPSEEK_API_KEY": key}):
            return self.run_command("balance")

    def test_the_balance_is_asked_for_with_the_key_of_the_environment(self) -> None:
        code, out, err = self.balance()
        self.assertEqual((0, ""), (code, err))
        self.assertEqual(["CNY", "110.00", "10.00", "100.00"], out.splitlines()[1].split())
        self.assertIn("The account can be used.", out)

    def test_a_key_can_be_typed_without_echo(self) -> None:
        terminal = mock.patch("deepseek_cursor_proxy.cli.questions.can_ask", return_value=True)
        with terminal, mock.patch("getpass.getpass", return_value="sk-typed "):
            self.assertEqual(0, self.run_command("balance")[0])
        with terminal, mock.patch("getpass.getpass", return_value="y"):
            self.assertIn("too short for a key", self.run_command("balance")[2])

    def test_without_a_key_or_with_an_odd_one_nothing_is_asked(self) -> None:
        with mock.patch("deepseek_cursor_proxy.cli.questions.can_ask", return_value=False):
            code, out, err = self.run_command("balance")
        self.assertEqual((2, ""), (code, out))
        self.assertIn("set DEEPSEEK_API_KEY, or run this in a terminal", err)
        code, _, err = self.balance("two words")
        self.assertEqual((2, False), (code, "two words" in err))
        code, _, err = self.balance("sk-ant-of-another-company")
        self.assertEqual((2, False), (code, "another" in err))
        self.assertIn("never sent to DeepSeek", err)

    def test_failures_are_one_line_without_the_key(self) -> None:
        for answer, words in self.failures():
            with self.subTest(words):
                with answer as url, mock.patch.dict(os.environ, {"DEEPSEEK_CURSOR_PROXY_BASE_URL": url}):
                    code, out, err = self.balance("sk-planted-key")
                self.assertEqual((1, "", 1), (code, out, err.count("\n")), err)
                self.assertIn(words, err)
                self.assertNotIn("planted", err)

    def failures(self) -> Iterator[tuple[Any, str]]:
        @contextlib.contextmanager
        def answers(status: str, body: bytes) -> Iterator[str]:
            data = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
            with RawUpstream(lambda request: ScriptedReply.of(data)) as upstream:
                yield upstream.url

        @contextlib.contextmanager
        def nobody() -> Iterator[str]:
            yield "http://127.0.0.1:9"

        error = b'{"error": {"message": "Authentication Fails, sk-planted-key is invalid"}}'
        yield answers("401 No", error), "DeepSeek does not know this key"
        yield answers("404 No", b"{}"), "has no balance; only DeepSeek's own API has one"
        yield answers("500 Oops", error), "DeepSeek answered 500"
        yield answers("200 OK", b"<html>"), "is not JSON"
        yield answers("200 OK", b"{}"), "no balance_infos"
        yield nobody(), "127.0.0.1:9 cannot be reached"

    def test_help_names_both_commands(self) -> None:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), self.assertRaises(SystemExit):
            cli.main(["--help"])
        self.assertIn("usage", out.getvalue())
        self.assertIn("balance", out.getvalue())
