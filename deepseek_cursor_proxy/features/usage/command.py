"""The commands `usage` and `balance`: the requests that ended and their costs; the balance of the account.

Both only read, and work whether the proxy runs or not. All costs are estimates, and the text says so.
"""

import argparse
import contextlib
import csv
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import date
from typing import Any

from deepseek_cursor_proxy.access import HELD_KEY
from deepseek_cursor_proxy.cli import questions, running_proxy
from deepseek_cursor_proxy.cli.doctor.upstreams import BALANCE_PATH, read_account
from deepseek_cursor_proxy.cli.parser import load
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.access_keys import why_not_sendable
from deepseek_cursor_proxy.config.values import expand_home
from deepseek_cursor_proxy.deepseek.prices import PriceList, format_amount
from deepseek_cursor_proxy.errors import ProxyError, StartupError, UpstreamRefused
from deepseek_cursor_proxy.features.usage.ledger import DaySums
from deepseek_cursor_proxy.features.usage.report import GROUPS, NAMELESS, Period, UsageGroup, UsageReport, make_report
from deepseek_cursor_proxy.json_codec import as_object, decode_upstream_json
from deepseek_cursor_proxy.redaction import safe_text
from deepseek_cursor_proxy.storage.database import open_read_only
from deepseek_cursor_proxy.storage.faults import Unusable
from deepseek_cursor_proxy.upstream.client import Call, UpstreamClient
from deepseek_cursor_proxy.upstream.connections import Destination

_DEFAULT_DAYS = 30
# A person waits for it, not for a model that thinks.
_BALANCE_SECONDS = 20.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--today", dest="days", action="store_const", const=1, help="today")
    when.add_argument("--week", dest="days", action="store_const", const=7, help="the last 7 days, including today")
    when.add_argument("--month", dest="days", action="store_const", const=30, help="the last 30 days (the default)")
    when.add_argument("--since", type=_day, metavar="DATE", help="since a day such as 2026-11-01")
    parser.add_argument("--by", choices=GROUPS, default="day", help="what each line sums up (default: day)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON instead of the table")
    form.add_argument("--csv", action="store_true", help="print comma-separated values, for a spreadsheet")


def _day(text: str) -> date:
    with contextlib.suppress(ValueError):
        if 2000 <= (day := date.fromisoformat(text)).year < 9000:
            return day
    raise argparse.ArgumentTypeError(f"{text!r} is not a day such as 2026-11-01")


# usage …


def print_usage(options: dict[str, Any]) -> None:
    config = load(options).config
    today = date.today()
    since = options["since"]
    period = Period(since, max(since, today)) if since else Period.last_days(options["days"] or _DEFAULT_DAYS, today)
    report, reason = _read(config, period, options["by"])
    if options["json"]:
        print(json.dumps(report.as_json(), indent=2))
    elif options["csv"]:
        _print_csv(report)
    else:
        print("\n".join(_lines(report, reason)))


def _read(config: ProxyConfig, period: Period, by: str) -> tuple[UsageReport, str]:
    """The report, and why it may be empty."""
    path = expand_home(config.reasoning_content_path)
    empty = UsageReport(period, by, config.currency, (), UsageGroup("", DaySums()), {})
    if str(config.reasoning_content_path) == ":memory:":
        return empty, "The store is in memory (reasoning_content_path), so usage is forgotten when the proxy stops."
    # A proxy that runs with this store writes what it holds when it proves itself.
    for _ in running_proxy.ask_all(path, "/healthz", None, with_runs=True):
        pass
    recorded = "The proxy records each request when it ends."
    try:
        with open_read_only(path, "usage") as connection:
            return make_report(connection, period, by, PriceList(config)), recorded
    except FileNotFoundError:
        if path.exists():
            return empty, recorded
        return empty, f"There is no store at {path}: the proxy has not run yet, or uses another store."
    except Unusable as fault:
        raise StartupError(f"cannot read {path}: {fault}") from None


def _lines(report: UsageReport, reason: str) -> list[str]:
    since, until = report.period
    when = f"on {since}" if since == until else f"from {since} to {until}"
    if not report.groups:
        return [f"No usage {when}. {reason}"]
    total = [report.total._replace(name="total")] if len(report.groups) > 1 else []
    rows = [_cells(group, report) for group in (*report.groups, *total)]
    table = _table(tuple(rows[0]), [tuple(row.values()) for row in rows])
    return [f"Usage {when} by {report.by}; costs are estimates.", "", *table, *_notes(report)]


def _cells(group: UsageGroup, report: UsageReport) -> dict[str, str]:
    """A line of the table by the names of its columns."""
    sums = group.sums
    prompt = sums.hit + sums.miss
    searches = {"searches": f"{sums.searches:,}"} if report.total.sums.searches else {}
    return {
        "API" if report.by == "api" else report.by: safe_text(group.name, 60),
        "requests": f"{sums.requests:,}",
        "failed": f"{sums.failed:,}",
        "input": f"{prompt:,}",
        "cached": f"{100 * sums.hit // prompt} %" if prompt else "-",
        "output": f"{sums.output:,}",
        "thinking": f"{sums.thinking:,}",
        **searches,
        "cost": "unknown" if group.cost is None else format_amount(group.cost, report.currency),
        "saved": format_amount(sums.saved, report.currency),
        **({"lost": format_amount(sums.divergence_cost, report.currency)} if report.by == "cause" else {}),
    }


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned lines: the first column to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        return "  ".join([f"{first[0]:<{first[1]}}", *(f"{cell:>{width}}" for cell, width in others)])

    return [line(head), *map(line, rows)]


def _notes(report: UsageReport) -> list[str]:
    sums, notes = report.total.sums, []
    if sums.divergence_cost:
        amount = format_amount(sums.divergence_cost, report.currency)
        notes.append(f"Of this, {amount} was spent because chats lost their cached prefix; --by cause says why.")
    if switched := report.switched.requests:
        now, then = (format_amount(each, report.currency, 4) for each in report.switched[1:])
        saved = format_amount(report.switched.asked_cost - report.switched.cost, report.currency, 4)
        which = f"Requests that another model answered, such as those of sub-agents: {switched:,}"
        notes.append(f"{which}. They cost {now} instead of {then}, {saved} saved.")
    if count := sums.unknown_costs:
        why = 'no price is known (set one with [prices."model"]), the answer was stopped, or it went elsewhere'
        notes.append(f"Requests of unknown cost, which are not in the sum: {count:,}; {why}.")
    return ["", *notes] if notes else []


def _print_csv(report: UsageReport) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([report.by, *_CSV_FIELDS, "currency"])
    for group in report.as_json()["groups"]:
        name = safe_text(group["name"], 60)
        if name.lstrip()[:1] in _FORMULA_SIGNS and name != NAMELESS:
            name = f"'{name}"
        writer.writerow([name, *(group[field] for field in _CSV_FIELDS), report.currency])


# A spreadsheet would compute a name that begins like a formula; some also read the wide forms.
_FORMULA_SIGNS = tuple("=+-@＝＋－＠")
_CSV_FIELDS = (
    "requests", "failed", "hit_tokens", "miss_tokens", "output_tokens", "thinking_tokens", "searches", "cost",
    "unknown_cost_requests", "saved", "divergence_cost",
)  # fmt: skip


# balance: the answer of `GET /user/balance`, checked …


def print_balance(options: dict[str, Any]) -> int:
    """Ask DeepSeek with the key of the environment, or one that is typed; the exit code. StartupError without a key."""
    config = load(options).config
    key = _key()
    config = dataclasses.replace(config, request_timeout=min(config.request_timeout, _BALANCE_SECONDS))
    host = config.upstream_base_url
    destination = Destination(host.rstrip("/") + BALANCE_PATH, method="GET")
    try:
        with closing(UpstreamClient(config)) as client, closing(client.send(Call(destination, key))) as response:
            account = read_account(as_object(decode_upstream_json(response.read())))
    except (ProxyError, ValueError) as error:
        print(f"deepseek-cursor-proxy: {safe_text(_failure(error, host).replace(key, '***'), 1000)}", file=sys.stderr)
        return 1
    if account.balances:
        print("\n".join((*_table(("currency", "balance", "granted", "topped up"), account.balances), "")))
    print("The account can be used." if account.is_available else "The account cannot be used: top it up.")
    return 0


def _failure(error: Exception, host: str) -> str:
    if not isinstance(error, ProxyError):
        return f"{host} answered something that is not JSON; only DeepSeek's own API has a balance (base_url)"
    if not isinstance(error, UpstreamRefused):
        return error.message
    if error.status == 401:
        return f"DeepSeek does not know this key; check {HELD_KEY}, or the key that you typed"
    if error.status in (404, 405):
        return f"{host} has no balance; only DeepSeek's own API has one (base_url)"
    return f"DeepSeek answered {error.status}: {error.message}"


def _key() -> str:
    key = os.environ.get(HELD_KEY, "").strip()
    if not key:
        if not questions.can_ask():
            raise StartupError(f"no key: set {HELD_KEY}, or run this in a terminal and type it")
        key = questions.ask_key("DeepSeek API key: ")
    if problem := why_not_sendable(key):
        raise StartupError(problem)
    return key
