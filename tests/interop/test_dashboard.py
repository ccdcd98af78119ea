"""The dashboard of a real proxy in a real browser: live, by mouse and by keyboard, in both themes, wide and narrow.

`test_dashboard_views` has views full of data, which no test can have by asking, and the screenshots of the pages.
"""

import json
import socket
import uuid
from typing import Any

from deepseek_cursor_proxy.features.dashboard.service import AdminService
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import Answer, Call, Failure
from tests.interop.browser import BrowserCase, Page, expect, focus_is_visible
from tests.support.admin_client import ADMIN_KEY, AdminCase
from tests.support.cursor import WEATHER_TOOLS, run_weather_tool
from tests.support.harness import RunningProxy, chat_body
from tests.support.polling import wait_until
from tests.support.ports import server_port

# What a browser says of its own about replies that are no success, and about a server that is away.
UNAUTHORISED, GONE = "401 (Unauthorized)", ("net::ERR_", "Failed to load resource")
EVIL = '<img src=x onerror="alert(1)"><b>model</b>'


class DashboardCase(BrowserCase, AdminCase):
    def start(self, **settings: Any) -> tuple[RunningProxy, AdminService]:
        proxy = self.admin_proxy(**settings)
        return proxy, self.admin(proxy)

    def link(self, admin: AdminService) -> str:
        return f"{admin.url}/#key={ADMIN_KEY}"

    def dashboard(self, admin: AdminService, route: str = "", **details: Any) -> Page:
        page = self.open_page(self.link(admin), **details)
        expect(page.get_by_text("Live", exact=True).first).to_be_visible()
        if route:
            page.evaluate("route => { location.hash = route }", route)
        return page

    def detail(self, page: Page, of: str = "Request") -> Any:
        return page.get_by_role("region", name=of, exact=True)

    def rows(self, page: Page, table: str = "Requests, newest first") -> Any:
        return page.get_by_role("table", name=table).locator("tbody tr")

    def begin_stream(self, proxy: RunningProxy) -> socket.socket:
        self.fake.answer(Answer("I think about it for a while.", "Once upon a time", stall_after=4))
        return self.connect(proxy, chat_body("A story, please.", model="deepseek-v4-pro", stream=True))

    def talk(self, proxy: RunningProxy) -> None:
        client = self.client(proxy, tools=WEATHER_TOOLS, run_tool=run_weather_tool)
        location = Answer("Where is that?", calls=(Call(new_id(), "get_location", "{}"),))
        weather = Answer("And there?", calls=(Call(new_id(), "get_weather", '{"city": "Hangzhou"}'),))
        self.fake.answer(location, weather, Answer("I know now.", "Cloudy, 7 °C."))
        client.ask("How is the weather?")


def new_id() -> str:
    return f"call_{uuid.uuid4().hex}"


class LiveTest(DashboardCase):
    def test_a_stream_appears_while_it_runs_and_its_request_when_it_has_ended(self) -> None:
        proxy, admin = self.start()
        page = self.dashboard(admin)
        self.assertNotIn("key=", page.url)
        expect(page.get_by_text("Waiting for the first request")).to_be_visible()
        running = page.get_by_role("table", name="Requests in flight")
        with self.begin_stream(proxy):
            expect(running.get_by_role("cell", name="Streaming")).to_be_visible()
            expect(running.get_by_role("cell", name="deepseek-v4-pro")).to_be_visible()
            self.assertIn("(1) Now", page.title())
        newest = page.get_by_role("table", name="Newest requests")
        expect(newest.get_by_role("cell", name="Client left")).to_be_visible()
        expect(page.get_by_text("Nothing is running")).to_be_visible()

    def test_a_request_is_opened_in_the_address_and_closed_by_going_back(self) -> None:
        proxy, admin = self.start()
        page = self.dashboard(admin)
        self.talk(proxy)
        page.get_by_role("link", name="Requests", exact=True).click()
        page.get_by_role("row").filter(has=page.get_by_role("link", name="Request 3")).click()
        detail = self.detail(page)
        expect(detail.get_by_role("region", name="Tokens and cost")).to_be_visible()
        expect(detail.get_by_role("img", name="Reasoning of 2 turns: 2 from the store")).to_be_visible()
        expect(detail.get_by_role("img", name="Time: ")).to_be_visible()
        # Nothing of the bodies without tracing, but how to have them.
        expect(detail.get_by_text("trace_dir")).to_be_visible()
        self.assertRegex(page.url, r"#/requests/\d+$")
        page.go_back()
        expect(detail).to_be_hidden()
        self.assertTrue(page.url.endswith("#/requests"))
        page.go_back()
        expect(page.get_by_role("heading", name="Requests in flight")).to_be_visible()

    def test_a_request_that_runs_can_be_opened_by_its_link_and_says_more_when_it_has_ended(self) -> None:
        proxy, admin = self.start()
        with self.begin_stream(proxy):
            wait_until(lambda: self.get(admin, "/api/stats").value["in_flight"])
            page = self.open_page(self.link(admin), expected=("404",))
            page.goto(f"{admin.url}/#/requests/1")
            page.reload()
            detail = self.detail(page)
            expect(detail.get_by_text("The rest is known when the request has ended.")).to_be_visible()
        expect(detail.get_by_role("region", name="Time")).to_be_visible()
        expect(detail.get_by_text("Client left", exact=True)).to_be_visible()

    def test_the_list_stands_still_under_the_pointer_and_says_how_many_wait(self) -> None:
        proxy, admin = self.start()
        self.talk(proxy)
        page = self.dashboard(admin, "#/requests")
        rows = self.rows(page)
        expect(rows).to_have_count(3)
        rows.first.hover()
        self.talk(proxy)
        expect(page.get_by_role("button", name="Show 3 new")).to_be_visible()
        expect(rows).to_have_count(3)
        page.mouse.move(5, 5)
        expect(rows).to_have_count(6)
        expect(page.get_by_role("button", name="Live")).to_be_visible()

    def test_a_filter_leaves_what_matches_and_is_part_of_the_address(self) -> None:
        proxy, admin = self.start()
        self.talk(proxy)
        self.fake.answer(Failure(500))
        self.round_trip(proxy, chat_body("x", model="deepseek-flash"))
        page = self.dashboard(admin, "#/requests")
        rows = self.rows(page)
        expect(rows).to_have_count(4)
        page.get_by_label("Filter by outcome").select_option("failed")
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("deepseek-flash")
        self.assertTrue(page.url.endswith("?outcome=failed"))
        page.get_by_label("Filter by model").select_option("deepseek-v4-pro")
        expect(page.get_by_text("No request matches")).to_be_visible()
        page.get_by_role("button", name="Clear filters").click()
        expect(rows).to_have_count(4)

    def test_bodies_are_shown_with_tracing_on_the_thinking_folded_until_it_is_found(self) -> None:
        proxy, admin = self.start(trace_dir=self.folder / "traces")
        self.fake.answer(Answer("The secret of the thought.", f"Said {EVIL}"))
        self.round_trip(proxy, chat_body(f"Asked {EVIL}", model="deepseek-v4-pro"))
        page = self.dashboard(admin, "#/requests/1")
        bodies = page.get_by_role("region", name="Bodies")
        expect(bodies.get_by_text(f"Asked {EVIL}")).to_be_visible()
        bodies.get_by_role("button", name="Answer").click()
        expect(bodies.get_by_text(f"Said {EVIL}")).to_be_visible()
        thought = bodies.get_by_text("The secret of the thought.")
        expect(thought).to_be_hidden()
        bodies.get_by_role("searchbox").fill("SECRET")
        expect(thought).to_be_visible()
        expect(bodies.locator("mark")).to_have_text("secret")
        expect(bodies.get_by_text("1 of 1")).to_be_visible()

    def test_what_the_proxy_counted_is_shown_with_its_cost(self) -> None:
        proxy, admin = self.start()
        self.talk(proxy)
        wait_until(lambda: self.get(admin, "/api/usage").value["total"]["requests"] == 3)
        page = self.dashboard(admin, "#/usage")
        # Of a single day there is a table alone.
        expect(page.get_by_role("row", name="Total 3")).to_contain_text("<$0.01")
        expect(page.get_by_role("region", name="Cost per day, by model")).to_be_hidden()
        row = self.rows(page, "Usage by model")
        expect(row).to_have_count(1)
        expect(row).to_contain_text("deepseek-v4-pro")
        for group in ("Key", "API", "Session", "Day"):
            page.get_by_role("button", name=group, exact=True).click()
            expect(page.get_by_role("table", name=f"Usage by {group}").locator("tfoot")).to_contain_text("Total")
        page.get_by_role("link", name="Store and settings").click()
        for text in ("Usable", "Response cache"):
            expect(self.detail(page, "Store")).to_contain_text(text)
        page.get_by_role("searchbox", name="Filter settings").fill("admin_port")
        expect(self.rows(page, "Settings")).to_have_count(1)

    def test_requests_of_an_earlier_run_are_in_the_list_and_can_be_opened(self) -> None:
        path = self.folder / "store.sqlite3"
        former = self.proxy(ReasoningStore(path), admin_port=0, admin_key=ADMIN_KEY)
        self.talk(former)
        former.close()
        proxy = self.proxy(ReasoningStore(path), admin_port=0, admin_key=ADMIN_KEY)
        self.talk(proxy)
        page = self.dashboard(self.admin(proxy), "#/requests")
        rows = self.rows(page)
        expect(rows).to_have_count(6)
        page.get_by_role("link", name="Request 3 of an earlier run").click()
        detail = self.detail(page)
        expect(detail.get_by_role("heading", name="Request 3 of an earlier run")).to_be_visible()
        expect(detail.get_by_role("region", name="Tokens and cost")).to_be_visible()

    def test_text_of_strangers_is_shown_as_text(self) -> None:
        proxy, admin = self.start()
        self.fake.answer(Failure(400, f"No {EVIL} here."))
        self.round_trip(proxy, chat_body("x", model=EVIL))
        page = self.dashboard(admin, "#/requests/1")
        expect(page.get_by_text(EVIL).first).to_be_visible()
        self.assertEqual(0, page.locator("main img, main b b").count())


class KeyboardTest(DashboardCase):
    def test_everything_can_be_done_without_a_pointer(self) -> None:
        proxy, admin = self.start()
        self.talk(proxy)
        page = self.dashboard(admin)
        press = page.keyboard.press
        press("2")
        expect(page.get_by_role("heading", name="Requests", exact=True)).to_be_visible()
        for key, number in (("j", 3), ("j", 2), ("ArrowDown", 1), ("k", 2), ("Home", 3), ("End", 1)):
            with self.subTest(key), focus_is_visible(page):
                press(key)
                expect(page.get_by_role("link", name=f"Request {number}", exact=True)).to_be_focused()
        press("Enter")
        detail = self.detail(page)
        expect(detail.get_by_role("heading", name="Request 1")).to_be_visible()
        press("k")
        expect(detail.get_by_role("heading", name="Request 2")).to_be_visible()
        press("Escape")
        expect(detail).to_be_hidden()
        expect(page.get_by_role("link", name="Request 2", exact=True)).to_be_focused()
        press("p")
        expect(page.get_by_role("button", name="Paused")).to_be_visible()
        press("3")
        expect(page.get_by_role("heading", name="Usage", exact=True)).to_be_visible()
        # Without named keys and sessions these views have no tabs.
        press("4")
        expect(page.get_by_role("heading", name="Store and settings")).to_be_visible()
        press("/")
        expect(page.get_by_role("searchbox", name="Filter settings")).to_be_focused()
        # In a field these are letters.
        page.keyboard.type("1?t")
        self.assertTrue(page.url.endswith("#/store"))
        press("Escape")
        press("Tab")
        press("?")
        help_dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
        expect(help_dialog).to_be_visible()
        press("Escape")
        expect(help_dialog).to_be_hidden()

    def test_tab_goes_through_bar_and_list_with_one_stop_in_the_list(self) -> None:
        proxy, admin = self.start()
        self.talk(proxy)
        page = self.dashboard(admin, "#/requests")
        expect(page.get_by_role("link", name="Request 3", exact=True)).to_be_visible()
        here, stops = "document.activeElement", list[str]()
        for _ in range(30):
            with focus_is_visible(page):
                page.keyboard.press("Tab")
            stops.append(page.evaluate(f"({here}.getAttribute('aria-label') ?? {here}.textContent).trim()"))
            if stops[-1].startswith("Request "):
                break
        self.assertEqual("Skip to the content", stops[0])
        for name in ("Now", "Requests", "Usage", "Keyboard shortcuts", "Filter by model"):
            self.assertIn(name, stops)
        self.assertEqual("Request 3", stops[-1])
        page.keyboard.press("Tab")
        self.assertFalse(page.evaluate("document.activeElement.closest('tbody') !== null"))


class SessionsTest(DashboardCase):
    def test_a_recorded_trajectory_is_found_by_its_session_and_read_with_its_thinking(self) -> None:
        proxy, admin = self.start(record="all")
        page = self.dashboard(admin, "#/sessions")
        expect(page.get_by_role("link", name="Sessions")).to_be_hidden()
        self.talk(proxy)
        expect(page.get_by_text("1 session", exact=True)).to_be_visible()
        page.locator(".sessions tbody tr").first.click()
        detail = self.detail(page, "Session")
        expect(detail.get_by_role("link", name="How is the weather?")).to_be_visible()
        expect(detail.get_by_text("Cloudy, 7 °C.")).to_be_visible()
        thought = detail.get_by_text("And there?")
        expect(thought).to_be_hidden()
        detail.get_by_role("searchbox", name="Search").fill("And there")
        expect(thought).to_be_visible()
        # It clears the search first.
        page.keyboard.press("Escape")
        expect(detail).to_be_visible()
        page.keyboard.press("Escape")
        expect(detail).to_be_hidden()
        page.go_back()
        detail.get_by_role("button", name="Close").click()
        expect(detail).to_be_hidden()


class ThemeTest(DashboardCase):
    def background(self, page: Page) -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    def test_the_theme_is_the_systems_until_one_is_chosen_and_that_is_remembered(self) -> None:
        _, admin = self.start()
        page = self.dashboard(admin, theme="dark")
        dark = self.background(page)
        page.get_by_role("button", name="Theme: as the system").click()
        light = self.background(page)
        self.assertNotEqual(dark, light)
        page.reload()
        expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
        self.assertEqual(light, self.background(page))
        page.keyboard.press("t")
        self.assertEqual(dark, self.background(page))


class AccessTest(DashboardCase):
    def test_without_the_key_the_page_says_where_it_is_and_takes_it(self) -> None:
        _, admin = self.start()
        page = self.open_page(f"{admin.url}/", expected=(UNAUTHORISED,))
        expect(page.get_by_role("heading", name="This page needs its key")).to_be_visible()
        expect(page.get_by_text("python -m deepseek_cursor_proxy dashboard")).to_be_visible()
        field = page.get_by_label("Link or key")
        expect(field).to_be_focused()
        field.fill("a wrong key")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("another key")
        page.get_by_label("Link or key").fill(self.link(admin))
        page.keyboard.press("Enter")
        expect(page.get_by_text("Live", exact=True)).to_be_visible()
        self.assertNotIn(ADMIN_KEY, page.url)
        # The next page of this tab has it, another tab has not.
        page.reload()
        expect(page.get_by_text("Live", exact=True)).to_be_visible()

    def test_a_proxy_that_stops_is_found_again_when_it_runs(self) -> None:
        port = self.enterContext(server_port())
        proxy, admin = self.start(admin_port=port)
        self.talk(proxy)
        page = self.dashboard(admin, expected=GONE)
        admin.close()
        expect(page.get_by_role("strong").get_by_text("The proxy does not answer.")).to_be_visible()
        expect(self.rows(page, "Newest requests").get_by_role("cell", name="deepseek-v4-pro").first).to_be_visible()
        page.keyboard.press("3")
        expect(page.get_by_text("This could not be loaded")).to_be_visible()
        again = self.start(admin_port=port)[1]
        self.assertEqual(admin.url, again.url)
        # The page asks again by itself, and hides it when it was answered before this comes.
        page.get_by_role("button", name="Try now", include_hidden=True).dispatch_event("click")
        expect(page.get_by_text("Live", exact=True)).to_be_visible()
        expect(page.get_by_text("Nothing was used in these days")).to_be_visible()
        page.keyboard.press("1")
        # It is another run, so the requests of the former are gone.
        expect(page.get_by_text("Waiting for the first request")).to_be_visible()


class ModuleTest(DashboardCase):
    """Modules that do not touch the page, in the browser that runs them."""

    def evaluate(self, module: str, script: str) -> Any:
        _, admin = self.start()
        page = self.dashboard(admin)
        return page.evaluate(f"async () => {{ const module = await import('/js/{module}'); {script} }}")

    def test_the_model_keeps_the_newest_rows_and_none_of_a_gap_or_of_another_run(self) -> None:
        """A request that ended between the two answers of a poll is shown once, as ended; none is asked for twice."""
        found = self.evaluate(
            "model.js",
            """
            const model = new module.Model();
            const known = () => [model.rows.size, Math.min(...model.rows.keys()), [...model.running.keys()]];
            const poll = (newest, started_at = 1, count = 100, next_before = null) => {
              const in_flight = [{ number: newest }, { number: newest + 1 }];
              const stats = { in_flight, started_at, now: 2, newest_request: newest };
              const asked = model.missing(stats);
              const requests = Array.from({ length: count }, (_, place) => ({ id: newest - place }));
              model.update(stats, asked && { requests, next_before });
              return [asked, ...known(), model.hasOlder];
            };
            poll(100, 1, 100, 1);
            for (let newest = 190; newest < 2000; newest += 90) poll(newest);
            return [poll(2050), poll(2050), poll(3000, 1, 100, 2901), poll(1, 2, 1)];
            """,
        )
        wanted = [["?limit=100&after=1990", 500, 1551, [2051], True], [None, 500, 1551, [2051], True]]
        wanted += [["?limit=100&after=2050", 100, 2901, [3001], True], ["?limit=100", 1, 1, [2], False]]
        self.assertEqual(wanted, found)

    def test_rows_of_earlier_runs_come_behind_those_of_this_run(self) -> None:
        order = self.evaluate(
            "model.js", "return module.newestFirst([-7, 3, -8, 12].map((id) => ({ id }))).map((row) => row.id);"
        )
        self.assertEqual([12, 3, -8, -7], order)

    def test_figures_have_units_and_what_is_not_known_is_no_zero(self) -> None:
        thin = "\u202f"
        cases = {
            "count(1234567)": "1,234,567", "count(null)": "–", "compact(950)": "950", "compact(12345)": "12.3k",
            "compact(1200000)": "1.20M", "share(0.9999)": f"99{thin}%", "share(1)": f"100{thin}%", "share(1, 0)": "–",
            "seconds(0.4212)": f"0.42{thin}s", "seconds(75)": f"75.0{thin}s", "seconds(7384)": f"2{thin}h 3{thin}min",
            "bytes(96468992)": f"96.5{thin}MB", "compact(1500)": "1.50k", "roundCompact(1500)": "1.5k",
            "money(12.345)": "$12.35", "money(0)": "$0.00", "money(0.0042)": "<$0.01", "money(null)": "unknown",
            "money(3, 'CNY')": "¥3.00", "requestMoney(0.0061)": "$0.0061", "requestMoney(0.00002)": "<$0.0001",
            "roundMoney(0.5, 0.5)": "$0.50", "roundMoney(0.005, 0.005)": "$0.0050", "roundMoney(1500, 500)": "$1.5k",
        }  # fmt: skip
        calls = ", ".join(f"module.{call}" for call in cases)
        self.assertEqual(list(cases.values()), self.evaluate("format.js", f"return [{calls}];"))

    def test_bodies_of_all_three_apis_are_read(self) -> None:
        bodies = [
            {"messages": [{"role": "assistant", "reasoning_content": "r", "content": "c", "tool_calls": [
                {"function": {"name": "f", "arguments": '{"a":1'}}]}, {"role": "tool", "content": "t"}]},
            {"instructions": "i", "input": [{"type": "reasoning", "content": [{"text": "r"}]},
                {"type": "function_call", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "output": "t"},
                {"role": "user", "content": [{"type": "input_text", "text": "u"}]}]},
            {"system": "s", "messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": "r"},
                {"type": "tool_use", "name": "f", "input": {}}]}, {"role": "user", "content": [
                {"type": "tool_result", "content": "t"}, {"type": "image", "source": {}}]}]},
            {"reasoning": "r", "content": "c", "tool_calls": []},
        ]  # fmt: skip
        read = self.evaluate(
            "body_parts.js",
            f"""
            const kinds = ({{ role, parts }}) => [role, ...parts.map((part) => part.kind)].join(" ");
            return {json.dumps(bodies)}.map((body) => module.messagesOf(body).map(kinds));
            """,
        )
        self.assertEqual(
            [
                ["assistant thinking text call", "tool result"],
                ["system text", "assistant thinking", "assistant call", "tool result", "user text"],
                ["system text", "assistant thinking call", "user result other"],
                ["answer thinking text"],
            ],
            read,
        )
        odd: list[Any] = [None, 3, "text", [], {"messages": 3}, {"messages": [None, 3, {}]}, {"input": [{"type": "x"}]}]
        lengths = self.evaluate(
            "body_parts.js", f"return {json.dumps(odd)}.map((body) => module.messagesOf(body).length);"
        )
        self.assertEqual([0, 0, 1, 0, 0, 3, 1], lengths)
