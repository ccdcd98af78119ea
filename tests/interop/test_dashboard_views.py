"""Every view of the dashboard full of data, wide and narrow, light and dark; also the screenshots of the documentation.

With DASHBOARD_PICTURES=.github/images they are written there. The data are made up (`busy_proxy`), the page is real.
"""

import os
from pathlib import Path

from tests.interop import packages
from tests.interop.browser import NARROW, BrowserCase, Page, expect
from tests.interop.busy_proxy import ASKED, CHAT, NOW, OPENED, OTHER, PRO, SESSION, BusyProxy

# It knows the rules of WCAG that a program can check.
AXE = "axe-core@4.14.0"
PICTURES = os.environ.get("DASHBOARD_PICTURES")
SIZE = (1280, 800)
# Addresses of views, and a text that each has.
VIEWS = {
    "now": "In flight", "requests": "Older requests", f"requests/{OPENED}": "Tokens and cost",
    f"chats/{CHAT}": "Where the cache was lost", "usage": "Saved by the cache", "usage?range=1": "Usage by",
    "keys": "resets", "sessions": "nightly evaluation", f"sessions/{SESSION}": "It dropped the", "store": "Process",
}  # fmt: skip
# What can be scrolled sideways, and the texts that are cut, among headers, figures, dates, and models without the name
# under which a client asked.
CUT = """() => {
    const isCut = (each) => {
        const words = document.createRange(), text = each.firstChild;
        if (text?.nodeType !== Node.TEXT_NODE) return each.scrollWidth > each.clientWidth;
        words.setStart(text, 0);
        words.setEnd(text, text.data.includes(" ← ") ? text.data.indexOf(" ← ") : text.data.length);
        const end = words.getBoundingClientRect().right, style = getComputedStyle(each);
        return end > each.getBoundingClientRect().right - parseFloat(style.paddingRight) + 0.5;
    };
    const canScroll = (each) => /auto|scroll/.test(getComputedStyle(each).overflowX);
    const isWide = (each) => canScroll(each) && each.scrollWidth > each.clientWidth;
    const names = ".table :is(th, .number, .quiet, td > span.cut), .tile :is(.figure, .note)";
    const texts = document.querySelectorAll(names);
    const found = [...texts].filter((each) => each.offsetParent && isCut(each)).map((each) => each.textContent);
    const wide = [document.documentElement, ...document.querySelectorAll("main *")].filter(isWide);
    return [...found, ...wide.map((each) => each.outerHTML.slice(0, 80))];
}"""


class ViewsTest(BrowserCase):
    def setUp(self) -> None:
        self.proxy = self.enterContext(BusyProxy())

    def show(self, route: str, *, size: tuple[int, int] = SIZE, theme: str = "light") -> Page:
        page = self.open_page(f"{self.proxy.url}/#key=made-up", size=size, theme=theme, now=NOW)
        expect(page.get_by_text("Live", exact=True).first).to_be_visible()
        page.evaluate("route => { location.hash = route }", route)
        return page

    def go(self, page: Page, view: str) -> None:
        """Open the view and wait until it is there, whole."""
        page.evaluate("route => { location.hash = '#/' + route }", view)
        expect(page.locator("main").get_by_text(VIEWS[view]).filter(visible=True).first).to_be_visible()
        expect(page.locator(".bones:visible")).to_have_count(0)

    def picture(self, page: Page, name: str) -> None:
        if PICTURES:
            page.screenshot(path=Path(PICTURES) / f"dashboard-{name}.png", animations="disabled")

    def test_now_has_streams_figures_and_the_last_hour(self) -> None:
        page = self.show("#/now")
        running = page.get_by_role("table", name="Requests in flight").locator("tbody tr")
        expect(running).to_have_count(5)
        expect(running.first).to_contain_text("≈ 1,197")
        expect(running.first).to_contain_text("21\u202fs")
        expect(running.last.get_by_role("cell", name="Queued")).to_be_visible()
        expect(page.get_by_role("region", name="Spent today")).to_contain_text("$2.18")
        expect(page.get_by_role("region", name="Spent today")).to_contain_text("3 of unknown price")
        expect(page.get_by_role("region", name="Cache hits")).to_contain_text("94\u202f%")
        hour = page.get_by_role("img", name="Last hour, requests per minute: failed 2, Claude Code 141, Codex 116")
        expect(hour).to_be_visible()
        expect(running.first.get_by_role("cell", name="Cursor")).to_be_visible()
        self.picture(page, "now")

    def test_a_request_says_what_it_cost_and_where_its_reasoning_came_from(self) -> None:
        page = self.show(f"#/requests/{OPENED}", theme="dark")
        detail = page.get_by_role("region", name="Request", exact=True)
        words = "31 from the store, 1 from the client, 2 from the thinking block, 1 without thoughts, 1 missing"
        expect(detail.get_by_role("img", name=f"Reasoning of 37 turns: {words}, 1 not needed")).to_be_visible()
        broken = detail.get_by_role("region", name="Broken turn")
        for text in ("1 call written as text", "<|DSML|invoke", 'read({"path": "a.py"})'):
            expect(broken).to_contain_text(text)
        expect(detail.get_by_role("region", name="Cache loss")).to_contain_text("message 14 changed (user content)")
        expect(detail.get_by_role("region", name="Cache loss")).to_contain_text("$0.0312")
        expect(detail.get_by_role("img", name="Time: connect 0.21")).to_be_visible()
        expect(detail.get_by_role("region", name="Repairs")).to_contain_text(
            "2 × result away from its call: moved there"
        )
        self.picture(page, "requests")
        detail.get_by_text("Turn by turn").click()
        expect(detail.get_by_text("Message 54: missing")).to_be_visible()

    def test_a_chat_says_what_it_cost_and_where_its_cache_was_lost(self) -> None:
        page = self.show(f"#/requests/{OPENED}")
        page.get_by_role("link", name=CHAT).click()
        expect(page.get_by_role("region", name="Cache losses")).to_contain_text("cost about $0.03 more")
        losses = page.get_by_role("region", name="Where the cache was lost")
        expect(losses).to_contain_text(f"Request {OPENED}: message 14 changed (user content)")
        expect(page.get_by_role("img", name="Reasoning of 37 turns: 31 from the store")).to_be_visible()
        expect(page.get_by_role("img", name="Input of each request: cached 1.78M")).to_be_visible()
        self.picture(page, "chat")
        losses.get_by_role("link", name=f"Request {OPENED}").click()
        expect(page.get_by_role("region", name="Request", exact=True)).to_contain_text("Claude Code")

    def test_no_view_is_wider_than_its_window_and_no_figure_date_or_header_is_cut(self) -> None:
        """A cost of which the end is missing reads as another one."""
        for size, theme in ((SIZE, "light"), ((900, 800), "dark"), ((390, 844), "light"), (NARROW, "dark")):
            page = self.show("#/now", size=size, theme=theme)
            for view in VIEWS:
                with self.subTest(view, width=size[0], theme=theme):
                    self.go(page, view)
                    self.assertEqual([], page.evaluate(CUT))
                    self.assertEqual(size[0], page.evaluate("document.documentElement.scrollWidth"))

    def test_what_the_proxy_lacks_has_no_tab_and_no_view(self) -> None:
        """Its endpoints answer 404, of which the browser would report an error."""
        self.proxy.missing = frozenset({"sessions", "keys", "usage"})
        page = self.show("#/now")
        for view in VIEWS:
            with self.subTest(view):
                page.evaluate("route => { location.hash = '#/' + route }", view)
                expect(page.locator("main .panel").filter(visible=True).first).to_be_visible()
                expect(page.locator(".bones:visible")).to_have_count(0)
        expect(page.get_by_role("navigation").get_by_role("link")).to_have_text(
            ["Now", "Requests", "Store and settings"]
        )

    def test_a_ledger_that_cannot_be_read_is_said(self) -> None:
        self.proxy.changes = {"today": None, "sessions": None, "cache": None}
        page = self.show("#/now")
        expect(page.get_by_role("region", name="Spent today")).to_contain_text("the store cannot be read")
        expect(page.get_by_role("link", name="Sessions")).to_be_visible()

    def test_the_model_that_is_paid_comes_before_the_name_that_was_asked_for(self) -> None:
        page = self.show("#/requests")
        row = page.get_by_role("row").filter(has_text="Codex").filter(has_text=PRO)
        expect(row.first).to_contain_text(f"{PRO} ← {ASKED['Codex']}")

    def test_a_session_has_its_date_and_a_name_that_can_be_read_beside_it(self) -> None:
        page = self.show("#/sessions")
        first = page.get_by_role("row").filter(has=page.get_by_role("link", name="Fix the failing test"))
        expect(first.get_by_role("cell", name="17 Nov, 15:04")).to_be_visible()
        expect(page.get_by_role("row").filter(has_text="unused")).to_contain_text("–")
        first.click()
        session = page.get_by_role("region", name="Session", exact=True)
        expect(session.get_by_text("You are a coding agent.")).to_be_visible()
        self.assertGreater(first.locator("td").first.evaluate("each => each.clientWidth"), 300)
        self.picture(page, "sessions")

    def test_usage_has_a_column_for_every_day_and_no_price_that_is_unknown(self) -> None:
        page = self.show("#/usage", size=(1280, 1000))
        cost = page.get_by_role("img", name="Cost per day, by model: deepseek-v4-pro $")
        # 22 days of work in 30 days; the model without a price has no column.
        expect(cost.locator("rect:not(.cursor)")).to_have_count(2 * 22)
        table = page.get_by_role("table", name="Usage by model")
        expect(table.get_by_role("row").filter(has_text=OTHER)).to_contain_text("unknown")
        self.picture(page, "usage")
        cost.hover(position={"x": 300, "y": 100})
        panel = page.get_by_role("region", name="Cost per day, by model")
        expect(panel).to_contain_text("Nov")
        page.mouse.move(0, 0)
        cost.focus()
        page.keyboard.press("ArrowLeft")
        expect(panel).to_contain_text("Tue 17 Nov")
        page.get_by_role("button", name="Key", exact=True).click()
        expect(page.get_by_role("table", name="Usage by key").locator("tbody tr")).to_have_count(3)
        page.get_by_role("button", name="Today").click()
        expect(panel).to_be_hidden()
        self.assertIn("range=1", page.url)
        self.assertIn("by=key", page.url)

    def test_keys_say_who_has_used_how_much_what_is_left_and_when_it_resets(self) -> None:
        for theme, size in ((theme, size) for theme in ("light", "dark") for size in (SIZE, NARROW)):
            page = self.show("#/keys", size=size, theme=theme)
            ben = page.get_by_role("region", name="Keys").get_by_role("listitem").filter(has_text="ben")
            for text in ("$4.20 today, 17 requests", "$4.20 of $5.00", "$0.80 left", "resets 18 Nov, 00:00"):
                expect(ben).to_contain_text(text)
            expect(page.get_by_role("region", name="Groups")).to_contain_text("$163.20 of $200.00")
            expect(page.get_by_role("listitem").filter(has_text="chidi")).to_contain_text("used up")
            expect(page.get_by_role("listitem").filter(has_text="jun")).to_contain_text("No limits")
            self.picture(page, f"keys-{theme}-{size[0]}")

    def test_axe_finds_no_fault_in_any_view_and_theme(self) -> None:
        axe = (packages.npm(AXE).parent / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
        for theme in ("light", "dark"):
            page = self.show("#/now", theme=theme)
            page.evaluate(axe)
            for view in VIEWS:
                with self.subTest(view, theme=theme):
                    self.go(page, view)
                    found = page.evaluate(
                        "async () => (await axe.run()).violations.map((each) => [each.id, each.nodes[0].html])"
                    )
                    self.assertEqual([], found)

    def test_nothing_moves_without_motion_if_the_system_says_so(self) -> None:
        page = self.show("#/now")
        moving = "document.getAnimations().filter((each) => each.playState === 'running').length"
        self.assertGreater(page.evaluate(moving), 0)
        page.emulate_media(reduced_motion="reduce")
        self.assertEqual(0, page.evaluate(moving))
