"""Tools that DeepSeek runs itself: which it takes on its Responses API, and the items and events of what they do.

    takes web_search, also forced                                    docs 2026-08; hermes-agent#80480 #80901, 2026-08-06
    takes deepseek_web_search, deepseek_read_url                     guide on web tools, 2026-11
    takes web_search_preview, and a date after either name           assumed, as OpenAI
    ignores file_search, code_interpreter, computer_use, mcp         docs 2026-09
    ignores search_context_size, user_location                       docs 2026-08
    runs search, open_page and find_in_page, several in an answer    hermes-agent#79986, 2026-08-06
    sends in_progress, searching, completed for each                 docs 2026-08
    takes a web_search_call back, and restores its results           docs 2026-08
    finds these results without the id as well                       assumed: Codex sends no id
    thinks and writes on after a search, in the same turn            assumed
    refuses a forced search while it thinks                          assumed, as for functions
    does not count searches in the usage                             assumed
    may ignore the tool without a word                               a copy of the docs after 2026-09-10

Each with where it is known from, and when. This file knows no socket or script.
"""

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

_TOOLS = re.compile(r"web_search(?:_preview)?(?:_\d{4}_\d{2}_\d{2})?|deepseek_web_search|deepseek_read_url")
CALL = "web_search_call"


@dataclass(frozen=True)
class Search:
    """One step of a search; `reasoning` and `text` come before it. It opens `url` or finds `pattern` there, if given.

    `raw` is the JSON of another item in place of it.
    """

    queries: tuple[str, ...] = ("the weather",)
    url: str = ""
    pattern: str = ""
    reasoning: str = ""
    text: str = ""
    status: str = "completed"
    has_id: bool = True
    raw: str = ""

    def item(self) -> dict[str, Any]:
        if self.raw:
            return dict(json.loads(self.raw))
        id = {"id": f"ws_{uuid.uuid4().hex}"} if self.has_id else {}
        return {**id, "type": CALL, "status": self.status, "action": self._action()}

    def _action(self) -> dict[str, Any]:
        if self.pattern:
            return {"type": "find_in_page", "url": self.url, "pattern": self.pattern}
        if self.url:
            return {"type": "open_page", "url": self.url}
        return {"type": "search", "query": self.queries[0], "queries": list(self.queries)}


class Citation(NamedTuple):
    """A source of the text between two of its characters."""

    url: str
    title: str
    start: int
    end: int

    def annotation(self) -> dict[str, Any]:
        place = {"start_index": self.start, "end_index": self.end}
        return {"type": "url_citation", "url": self.url, "title": self.title, **place}


def is_tool(tool: Mapping[str, Any]) -> bool:
    return _TOOLS.fullmatch(str(tool.get("type"))) is not None


def events(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of an item that a tool of DeepSeek's own made."""
    yield {"type": "response.output_item.added", "item": {**_begun(item), "status": "in_progress"}}
    if item["type"] == CALL:
        steps = (
            ("in_progress", "searching", "completed")
            if item.get("status", "completed") == "completed"
            else ("in_progress",)
        )
        for step in steps:
            yield {"type": f"response.{CALL}.{step}", "item_id": item.get("id")}
    yield {"type": "response.output_item.done", "item": item}


def _begun(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name in ("id", "type")}
