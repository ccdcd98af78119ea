"""Sessions: created, listed, read, exported and deleted; and the prompt that a chat request would send.

Requests are recorded by their path: /s/{id} before the path of any API (`PREFIXES`). To the caller of another key a
session does not exist. One that a key creates before an upstream has accepted it is in memory for some minutes.
"""

import re
from urllib.parse import parse_qs

from deepseek_cursor_proxy.api.endpoint import GenerationEndpoint
from deepseek_cursor_proxy.errors import BadRequest, NotFound
from deepseek_cursor_proxy.exchange.client_request import ClientRequest
from deepseek_cursor_proxy.exchange.exchange import prepare_request
from deepseek_cursor_proxy.features.sessions import export
from deepseek_cursor_proxy.features.sessions.export import node_json, prompt_json, session_json
from deepseek_cursor_proxy.features.sessions.feature import Sessions, file_faults, unknown_session
from deepseek_cursor_proxy.features.sessions.trajectory import Session, SessionOptions, message_json
from deepseek_cursor_proxy.features.tokens.feature import TokenCounter
from deepseek_cursor_proxy.http1.messages import HttpReply, HttpRequest, Pieces
from deepseek_cursor_proxy.json_codec import Json, bad_field, decode_json_object, encode_json, optional, too_long
from deepseek_cursor_proxy.protocols.request import parse

_LONGEST_NAME = 200
_MOST_TAGS = 32
# Host and port as clients send them; anything else would end up in a URL of ours.
_HOST = re.compile(r"[A-Za-z0-9.-]+(?::\d{1,5})?|\[[0-9A-Fa-f:.]+\](?::\d{1,5})?")


class SessionsEndpoint(GenerationEndpoint):
    @property
    def _sessions(self) -> Sessions:
        return self._services.get(Sessions)

    def create(self, request: HttpRequest, _: str) -> HttpReply:
        caller = self.admit(request).namespace
        raw = request.read_body()
        options = _options(decode_json_object(raw) if raw.strip() else {})
        with file_faults():
            session = self._sessions.create(caller, options, is_known=bool(self.report.key))
        shown = session_json(session, _base_url(request, session))
        return HttpReply.json({**shown, "ttl_seconds": options.ttl_seconds})

    def list(self, request: HttpRequest, _: str) -> HttpReply:
        caller = self.admit(request).namespace
        with file_faults():
            listed = self._sessions.list(caller)
        return HttpReply.json({"sessions": [session_json(session, _base_url(request, session)) for session in listed]})

    def retrieve(self, request: HttpRequest, session: str) -> HttpReply:
        stored = self._find(request, session)
        return HttpReply.json(session_json(stored, _base_url(request, stored)))

    def delete(self, request: HttpRequest, session: str) -> HttpReply:
        caller = self.admit(request).namespace
        with file_faults():
            is_deleted = self._sessions.delete(caller, session)
        if not is_deleted:
            raise unknown_session()
        return HttpReply.json({"status": "deleted", "uuid": session})

    def nodes(self, request: HttpRequest, session: str) -> HttpReply:
        stored = self._find(request, session)
        tokenizer = self._services.get(TokenCounter).load_tokenizer()

        def pieces() -> Pieces:
            yield b'{"nodes":['
            for index, node in enumerate(self._sessions.nodes(stored.uuid)):
                yield b"," * bool(index) + encode_json(node_json(node, tokenizer))
            yield b"]}"

        return HttpReply(200, pieces(), (("Content-Type", "application/json"),))

    def export(self, request: HttpRequest, session: str) -> HttpReply:
        stored = self._find(request, session)
        (form,) = parse_qs(request.query).get("format", ["openai"])[-1:]
        if form not in export.FORMATS:
            raise BadRequest(f"format is {', '.join(export.FORMATS)}.", param="format")
        tokenizer = self._services.get(TokenCounter).load_tokenizer() if form == "nodes" else None
        lines = export.lines(self._sessions.nodes(stored.uuid), form, export.Filter(), tokenizer)
        return HttpReply(200, lines, (("Content-Type", "application/jsonl; charset=utf-8"),))

    def render(self, request: HttpRequest, _: str) -> HttpReply:
        """The prompt of a chat request in a session; nothing is sent."""
        if not self.report.prefix:
            raise NotFound("Prompts are rendered in a session, at /s/{id}/v1/chat/completions/render.")
        return self.serve(request, None, self._render)

    def health(self, request: HttpRequest, _: str) -> HttpReply:
        """GET /health, as other recorders have it; needs no key."""
        services = self._services
        sessions, servers = self._sessions.count(), len(services.upstreams.all)
        model = services.config.upstream_model
        return HttpReply.json({"status": "ok", "model": model, "sessions": sessions, "servers": servers})

    def _render(self, client: ClientRequest) -> HttpReply:
        services = self._services
        chat = parse(client.body, services.config, client.memory)
        prepared = prepare_request(client.namespace, chat, services)
        messages = [message_json(message) for message in prepared.messages]
        return HttpReply.json(prompt_json(messages, list(prepared.tools), services.get(TokenCounter).load_tokenizer()))

    def _find(self, request: HttpRequest, session: str) -> Session:
        caller = self.admit(request).namespace
        with file_faults():
            stored = self._sessions.get(caller, session)
        if stored is None:
            raise unknown_session()
        return stored


def _options(body: Json) -> SessionOptions:
    name = optional(body, "name", str, "a string") or ""
    if len(name) > _LONGEST_NAME:
        raise too_long("name", _LONGEST_NAME)
    tags = optional(body, "tags", list, "a list of strings") or []
    if len(tags) > _MOST_TAGS or not all(isinstance(tag, str) and len(tag) <= _LONGEST_NAME for tag in tags):
        raise bad_field("tags", f"a list of at most {_MOST_TAGS} strings")
    ttl = body.get("ttl_seconds")
    if ttl is not None and (isinstance(ttl, bool) or not isinstance(ttl, (int, float)) or not 0 < ttl < 10**10):
        raise bad_field("ttl_seconds", "a number above 0")
    parser = optional(body, "tool_parser", str, "a string") or ""
    if parser not in ("", export.HERMES):
        raise BadRequest("tool_parser is hermes; no other encoding is part of this proxy.", param="tool_parser")
    tracks_tree = optional(body, "track_tree", bool, "true or false") or False
    return SessionOptions(name, tuple(tags), tracks_tree, ttl, reads_written_calls=bool(parser))


def _base_url(request: HttpRequest, session: Session) -> str:
    """The base URL of a session, under the name that the client calls the proxy by."""
    host = request.authority or request.headers.get("host") or ""
    if not _HOST.fullmatch(host):
        host = "127.0.0.1"
    scheme = "https" if request.headers.get("x-forwarded-proto") == "https" else "http"
    return f"{scheme}://{host}/s/{session.uuid}/v1"
