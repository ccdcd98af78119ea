"""A made-up admin listener with a month of traffic, for what a test cannot have by asking: days, prices, long answers.

It serves the real files of the dashboard, and JSON in the shapes of /api. Everything is the same
in every run, and no time passes, so that a screenshot changes only with the page.
"""

import contextlib
import json
import random
import threading
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from deepseek_cursor_proxy.features.dashboard.app import static_file

Json = dict[str, Any]

NOW = datetime(2026, 11, 17, 15, 4, 30, tzinfo=UTC)
PRO, FLASH, OTHER = "deepseek-v4-pro", "deepseek-flash", "qwen3-coder"
# Dollars for a million tokens: cached, not cached, output. None: nobody knows.
PRICES = {PRO: (0.022, 0.66, 1.98), FLASH: (0.003, 0.15, 0.6), OTHER: None}
KEYS, APIS = ("laptop", "build-server", "3f9c01ab77de"), ("chat", "messages", "responses")
CLIENTS = ("Cursor", "Claude Code", "Codex")
# The name under which a client asks, if it is another.
ASKED = {"Codex": "gpt-5.6-sol"}
SESSION = "ff48999b-4bfa-4e22-93b6-2e1791af4fba"
# A chat of which the request that the documentation opens is one.
CHAT = "c4f19ad2b07e"
NEWEST = 412
# The request that the documentation opens.
OPENED = 408
# Features of which the proxy may be without, and what /api/stats says of them.
FIELDS = {"usage": "today", "keys": "named_keys", "sessions": "sessions"}


class BusyProxy:
    # Features that the proxy is without, and fields of /api/stats that are other than usual.
    missing: frozenset[str] = frozenset()
    changes: Mapping[str, Any] = MappingProxyType({})

    def __enter__(self) -> "BusyProxy":
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _handler(proxy: BusyProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            if url.path.startswith("/api/"):
                parameters = {name: values[0] for name, values in parse_qs(url.query).items()}
                is_missing = url.path.split("/")[2] in proxy.missing
                found = {} if is_missing else answer(url.path, parameters)
                if url.path == "/api/stats":
                    found |= proxy.changes
                    hidden = [FIELDS[name] for name in proxy.missing]
                    found = {name: value for name, value in found.items() if name not in hidden}
                    found["views"] = [name for name in FIELDS if name not in proxy.missing]
                self._send(json.dumps(found).encode(), "application/json", 404 if is_missing else 200)
            else:
                reply = static_file(url.path)
                assert reply is not None, url.path
                self._send(reply.body, dict(reply.headers)["Content-Type"])

        def _send(self, body: Any, kind: str, status: int = 200) -> None:
            # A page that is closed takes no answer.
            with contextlib.suppress(OSError):
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def answer(path: str, parameters: dict[str, str]) -> Json:
    if path == "/api/stats":
        return stats()
    if path == "/api/requests" and "session" in parameters:
        rows = [row(number) for number in range(NEWEST - 1, NEWEST - 60, -1) if row(number)["session"] == CHAT]
        return {"requests": rows, "next_before": None}
    if path == "/api/requests":
        return {"requests": [row(number) for number in range(NEWEST, NEWEST - 40, -1)], "next_before": NEWEST - 39}
    if path == "/api/usage":
        return usage(NOW.date() - timedelta(int(parameters["days"]) - 1), NOW.date(), parameters["by"])
    if path == "/api/keys":
        return keys()
    if path == "/api/sessions":
        return {"sessions": [session(number) for number in range(3)]}
    if path.startswith("/api/sessions/"):
        return node() if "/nodes/" in path else {"session": session(0), "nodes": [node()]}
    if path == "/api/config":
        names = ("host", "allow_plain_http_upstream", "reasoning_cache_max_age_seconds")
        setting = {"value": '"127.0.0.1"', "origin": "default", "help": "address to listen on", "is_secret": False}
        return {"settings": [{"name": name, **setting} for name in names], "config_path": "/home/ada/config.toml"}
    return details(int(path.rpartition("/")[2]))


def keys() -> Json:
    """Ten people in two groups, some of them near a limit, one beyond."""
    day, month, minute = 1_794_960_000, 1_796_083_200, 1_794_927_900
    groups = [
        _holder("platform", "the product team", ("usd_per_month", 163.2, 200, month), ("concurrent", 3, 20, None)),
        _holder("research", "", ("usd_per_month", 41.07, 400, month)),
    ]
    people = []
    for number, name in enumerate(("ada", "ben", "chidi", "dana", "emre", "fatima", "greta", "hiro", "ines", "jun")):
        used = (1.1, 4.2, 5.06, 0.0, 2.75, 0.4, 0.0, 3.3, 4.9, 0.02)[number]
        limits = [("usd_per_day", used, 5, day), ("requests_per_minute", number, 30, minute)]
        if number == 1:
            limits += [("tokens_per_minute", 412_000, 500_000, minute), ("concurrent", 2, 2, None)]
        note = "" if number % 3 else "laptop and CI"
        person = _holder(name, note, *(limits if number != 9 else ()))
        expires = NOW.timestamp() + (number - 6) * 86400 if number in (3, 6, 8) else None
        models = ["deepseek-flash"] if number == 4 else []
        group = ("platform", "research", None)[number % 3]
        person |= {"group": group, "models": models, "expires_at": expires}
        people.append({**person, "requests_today": 17 * number, "cost_today": used})
    return {"now": NOW.timestamp(), "currency": "USD", "groups": groups, "keys": people}


def _holder(name: str, note: str, *limits: tuple[str, float, float, int | None]) -> Json:
    rows = [
        {"limit": limit, "used": used, "reserved": 0, "most": most, "is_money": "usd" in limit, "resets_at": resets}
        for limit, used, most, resets in limits
    ]
    return {"name": name, "note": note, "limits": rows, "share_reasoning": name == "research"}


def session(number: int) -> Json:
    used = NOW.timestamp() - number * 86_400
    names = ("Fix the failing test in src/app.py and explain what was wrong with it", "nightly evaluation", "unused")
    return {
        "uuid": SESSION if number == 0 else f"{number:08x}{SESSION[8:]}", "name": names[number], "model": PRO,
        "tags": ["eval", "nightly"] if number == 1 else [], "created_at": used - 600, "used_at": used,
        "requests": (41, 12_345, 0)[number], "nodes": (2, 1200, 0)[number],
        "tokens": (1_234_567, 98_765_432, 0)[number], "cost": (0.4711, 1234.56, None)[number],
    }  # fmt: skip


def node() -> Json:
    id = "call_00_096e2da7aaec46e8ba42d10f0939e6cd"
    call = {"id": id, "type": "function", "function": {"name": "read", "arguments": '{"path": "src/app.py"}'}}
    thought = "The test fails because the parser drops the last token. " * 8
    messages: list[Json] = [
        {"role": "system", "content": "You are a coding agent."},
        {"role": "user", "content": session(0)["name"]},
        {"role": "assistant", "content": "", "reasoning_content": thought, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": id, "content": "def parse(text):\n    return text.split()[:-1]\n" * 6},
        {"role": "assistant", "content": "It dropped the **last** token.", "reasoning_content": "Now I know."},
    ]
    return {
        "id": 2, "parent": None, "title": session(0)["name"], "message_count": 5, "turns": 2, "model": PRO,
        "started": NOW.timestamp() - 30, "finished": NOW.timestamp(), "cost": 0.4711, "api": "chat",
        "finish_reason": "stop", "is_complete": False, "requests": [407, 408], "messages": messages, "own": [2, 4],
        "tools": ["read", "shell"],
    }  # fmt: skip


def row(number: int) -> Json:
    chance = random.Random(number)
    model = chance.choices((PRO, FLASH, OTHER), (6, 4, 1))[0]
    outcome = chance.choices(("completed", "failed", "client_left"), (30, 1, 2))[0]
    has_diverged = number == OPENED
    if has_diverged:
        model, outcome = PRO, "completed"
    messages = chance.randrange(6, 90)
    prompt, output = messages * chance.randrange(700, 2400) + 9000, chance.randrange(90, 4200)
    hit = int(prompt * (0.41 if has_diverged else chance.choice((0.0, 0.93, 0.97, 0.98, 0.99)))) // 64 * 64
    tokens = {"hit": hit, "miss": prompt - hit, "output": output, "thinking": int(output * chance.uniform(0.3, 0.8))}
    first, total = chance.uniform(0.5, 2.6), chance.uniform(3, 30)
    cost, saved = _cost(model, tokens)
    ended = NOW.timestamp() - (NEWEST - number) * 47 - 3
    api = chance.choice(range(3))
    turns = {"filled": messages // 2 - 3, "kept": 1, "empty": 1, "missing": 0, "recovered": 0}
    return {
        "id": number, "number": number, "started_at": ended - total, "ended_at": ended, "api": APIS[api],
        "client": CLIENTS[api], "model": model, "requested_model": ASKED.get(CLIENTS[api], model),
        "key": chance.choice(KEYS), "stream": True,
        "session": CHAT if number % 2 == 0 else f"{number:012x}", "currency": "USD",
        "outcome": outcome, "status": {"completed": 200, "failed": 503, "client_left": 499}[outcome],
        "message": "DeepSeek is busy. Tried 3 times; try again in a minute." if outcome == "failed" else None,
        "tokens": tokens if outcome == "completed" else None, "searches": 0, "cost": cost, "saved": saved,
        "divergence_cost": 0.0312 if has_diverged else None,
        "seconds": {"queue": 0.0, "connect": 0.21, "first_token": first, "total": total},
        "retries": int(outcome == "failed") * 2, "turns": turns,
        "repairs": {"cancelled": 1} if number % 9 == 0 else {},
        "divergence": "message 14 changed (user content)" if has_diverged else None,
        "repaired": "1 call written as text" if has_diverged else None,
        "messages": messages, "tools": 18, "body_bytes": messages * 5300, "upstream": "api.deepseek.com",
    }  # fmt: skip


def _cost(model: str, tokens: Json) -> tuple[float | None, float | None]:
    prices = PRICES[model]
    if prices is None:
        return None, None
    cached, missed, output = prices
    cost = (tokens["hit"] * cached + tokens["miss"] * missed + tokens["output"] * output) / 1e6
    return cost, tokens["hit"] * (missed - cached) / 1e6


def details(number: int) -> Json:
    sources = ["store"] * 24 + ["client", "empty", "missing"] + ["store"] * 7 + ["display"] * 2 + ["none"]
    strip = [{"index": 2 + 2 * place, "source": source, "proof": None} for place, source in enumerate(sources)]
    more = {"finish_reason": "tool_calls", "dropped": ["parallel_tool_calls"], "bodies": None, "repairs": {"moved": 2}}
    more["repair"] = {"before": ['<|DSML|invoke name="read">…</|DSML|invoke>'], "after": ['read({"path": "a.py"})']}
    return {**row(number), **more, "strip": strip, "bodies_hint": "Bodies are kept only while tracing is on."}


def running(place: int) -> Json:
    phase = ("streaming", "streaming", "streaming", "sent", "queued")[place]
    seconds = (21, 12, 6, 2, 0)[place]
    return {
        "number": NEWEST + 1 + place, "started_at": NOW.timestamp() - seconds, "api": APIS[place % 3],
        "client": CLIENTS[place % 3],
        "model": (PRO, FLASH)[place % 2], "stream": True,
        "requested_model": ASKED.get(CLIENTS[place % 3], (PRO, FLASH)[place % 2]),
        "key": KEYS[place % 3], "session": None, "phase": phase, "age_seconds": seconds,
        "output_tokens_estimate": seconds * 57 if phase == "streaming" else 0,
        "first_token_seconds": 0.7 + place / 5 if phase == "streaming" else None,
    }  # fmt: skip


def _clients(count: int, place: int) -> Json:
    return {"Codex": count // 2, "Claude Code": (count + 1) // 2 - int(place in (11, 38))}


def stats() -> Json:
    chance = random.Random(3)
    first = int(NOW.timestamp()) // 60 * 60 - 59 * 60
    counts = [max(0, round(5 - abs(place % 40 - 20) / 4 + chance.uniform(-1, 4))) for place in range(60)]
    minutes = [
        {"minute": first + 60 * place, "requests": count, "failed": int(place in (11, 38)),
         "busy_seconds": 14 * (count + counts[place - 1] + 2), "clients": _clients(count, place),
         "output_tokens": count * 900, "cost": count * chance.uniform(0.003, 0.009)}
        for place, count in enumerate(counts)
    ]  # fmt: skip
    return {
        "version": "0.1.0", "started_at": NOW.timestamp() - 93_600, "now": NOW.timestamp(), "uptime_seconds": 93_600,
        "base_url": "http://127.0.0.1:9000/v1", "public_url": "https://quiet-otter-81.ngrok-free.app/v1",
        "upstreams": [{"name": "deepseek", "host": "api.deepseek.com", "state": "closed", "calls": 4, "waiting": 1}],
        "in_flight": [running(place) for place in range(5)], "waiting": {PRO: 1}, "connections": 9,
        "last_minutes": minutes, "newest_request": NEWEST,
        "first_token_seconds": {"p50": 0.84, "p95": 2.31}, "tokens_per_second": 57.2,
        "cache_hit_share": 0.943,
        "today": {"requests": 212, "cost": 2.1834, "unknown_cost_requests": 3, "saved": 11.42,
                  "divergence_cost": 0.173, "hit_tokens": 18_412_800, "miss_tokens": 1_204_331,
                  "output_tokens": 231_020, "thinking_tokens": 140_118, "searches": 0},
        "store": {"path": "/home/ada/.deepseek-cursor-proxy/reasoning_content.sqlite3", "state": "usable", "faults": 0,
                  "rows": {"reasonings": 18_231, "responses": 412}, "bytes": 96_468_992},
        "process": {"pid": 4711, "python": "3.13.1", "cpu_seconds": 41.3, "memory_bytes": 71_303_168, "open_files": 31},
        "named_keys": 10, "sessions": 3, "tracing": False, "currency": "USD",
    }  # fmt: skip


def usage(since: date, until: date, by: str) -> Json:
    days = [since + timedelta(place) for place in range((until - since).days + 1)]
    used = {day: _models_of(day) for day in days if day.weekday() < 5}
    groups = {
        "day": lambda: {day.isoformat(): list(models.items()) for day, models in used.items()},
        "model": lambda: {
            name: [(name, models[name]) for models in used.values() if name in models] for name in PRICES
        },
    }.get(by, lambda: {key: [each for models in used.values() for each in models.items()] for key in KEYS})()
    everything = [each for models in used.values() for each in models.items()]
    return {
        "since": since.isoformat(), "until": until.isoformat(), "by": by, "currency": "USD", "estimate": True,
        "groups": [{"name": name, **_sums(parts, seed=name)} for name, parts in groups.items()],
        "total": _sums(everything, seed="total"),
        "days": [{"day": day.isoformat(), "models": models} for day, models in used.items()],
    }  # fmt: skip


def _models_of(day: date) -> dict[str, Json]:
    chance = random.Random(day.toordinal())
    models = {}
    for name, share in ((PRO, 1.0), (FLASH, 0.5), (OTHER, 0.02)):
        count = int(chance.randrange(60, 240) * share)
        tokens = {
            "hit": count * chance.randrange(50_000, 90_000),
            "miss": count * chance.randrange(3000, 9000),
            "output": count * chance.randrange(600, 1500),
        }
        models[name] = {"cost": _cost(name, tokens)[0], "requests": count, "thinking_tokens": tokens["output"] * 3 // 5}
        models[name] |= {f"{kind}_tokens": number for kind, number in tokens.items()}
    return models


def _sums(parts: list[tuple[str, Json]], seed: str) -> Json:
    chance = random.Random(seed)
    names = ("requests", "hit_tokens", "miss_tokens", "output_tokens", "thinking_tokens")
    sums = {name: sum(used[name] for _, used in parts) for name in names}
    costs = [used["cost"] for _, used in parts if used["cost"] is not None]
    saved = sum(_cost(name, {"hit": used["hit_tokens"], "miss": 0, "output": 0})[1] or 0.0 for name, used in parts)
    unknown = sum(used["requests"] for _, used in parts if used["cost"] is None)
    seconds = {"p50": chance.uniform(9, 14), "p95": chance.uniform(35, 60)}
    first = {"p50": chance.uniform(0.6, 1.0), "p95": chance.uniform(1.8, 3.2)}
    return {
        **sums, "failed": sums["requests"] // 80, "searches": 0, "cost": sum(costs) if costs else None, "saved": saved,
        "unknown_cost_requests": unknown, "divergence_cost": sum(costs) * 0.05, "seconds": seconds,
        "first_token_seconds": first,
    }  # fmt: skip
