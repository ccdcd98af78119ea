"""/api/sessions: the recorded sessions of all callers, the tree of one, and a trajectory with its thinking.

These alone show prompts and answers, because the owner chose to record them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from deepseek_cursor_proxy.errors import NotFound
from deepseek_cursor_proxy.exchange.services import Services
from deepseek_cursor_proxy.features.dashboard.service import AdminContext
from deepseek_cursor_proxy.features.sessions.feature import Sessions, file_faults
from deepseek_cursor_proxy.features.sessions.store import SessionStore
from deepseek_cursor_proxy.features.sessions.trajectory import Node, Session, title
from deepseek_cursor_proxy.json_codec import as_object


def sessions(context: AdminContext, fields: Mapping[str, str]) -> dict[str, Any]:
    with _store(context.services()) as store:
        return {"sessions": [_session(each) for each in (store.list(None) if store is not None else ())]}


def find(context: AdminContext, fields: Mapping[str, str], session: str, number: str | None) -> dict[str, Any]:
    """A session and its nodes, without their messages; or one node with them."""
    with _store(context.services()) as store:
        found = store.get(None, session) if store is not None else None
        if store is None or found is None:
            raise NotFound("There is no such session, or it was deleted.", code="unknown_session")
        if number is not None:
            return _trajectory(store.node(session, int(number)))
        return {"session": _session(found), "nodes": [_summary(node) for node in store.nodes(session)]}


def _trajectory(node: Node | None) -> dict[str, Any]:
    if node is None:
        raise NotFound("There is no such trajectory in this session.", code="unknown_node")
    names = [as_object(tool.get("function")).get("name") for tool in node.tools]
    return {**_summary(node), "messages": list(node.messages), "own": sorted(node.own), "tools": names}


@contextmanager
def _store(services: Services) -> Iterator[SessionStore | None]:
    """The store; None if there are no sessions yet."""
    with file_faults():
        yield services.get(Sessions).existing_store()


def _session(session: Session) -> dict[str, Any]:
    names = ("uuid", "model", "created_at", "used_at", "requests", "nodes", "tokens", "cost")
    fields = {name: getattr(session, name) for name in names}
    return {**fields, "name": session.options.name, "tags": list(session.options.tags)}


def _summary(node: Node) -> dict[str, Any]:
    metadata = as_object(node.info.get("metadata"))
    return {
        "id": node.id,
        "parent": node.parent,
        "title": title((message.get("role"), message.get("content")) for message in node.messages),
        "message_count": len(node.messages),
        "turns": len(node.own),
        **{name: node.info.get(name) for name in ("model", "started", "finished", "cost")},
        **{name: metadata.get(name) for name in ("api", "finish_reason", "is_complete")},
        "requests": metadata.get("request_numbers"),
    }
