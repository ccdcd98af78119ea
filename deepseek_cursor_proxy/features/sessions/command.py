"""`sessions list | show | export`: the recorded trajectories of all callers, for the owner of the machine.

The file is read while the proxy runs or not, and nothing in it is changed.
An export is written node by node, so its memory does not grow with the number of nodes; on a terminal it says how far
it is.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from deepseek_cursor_proxy.cli.parser import Command, load, program_name
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.values import expand_home
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.features.sessions import export
from deepseek_cursor_proxy.features.sessions.feature import sessions_path
from deepseek_cursor_proxy.features.sessions.store import SessionStore
from deepseek_cursor_proxy.features.sessions.trajectory import Node, Session, reasoning_of
from deepseek_cursor_proxy.features.tokens.bpe import BpeTokenizer, read_tokenizer
from deepseek_cursor_proxy.redaction import safe_text
from deepseek_cursor_proxy.storage import private_files
from deepseek_cursor_proxy.storage.faults import Unusable

# Nodes between two updates of the progress on a terminal.
_NODES_PER_UPDATE = 20
_LONGEST_TEXT = 200


def add_session(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", metavar="ID", help="the id of a session, or its beginning")


def add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sessions", metavar="ID", nargs="*", help="sessions, by id or its beginning (default: all)")
    parser.add_argument("--format", choices=("openai", "sharegpt", "hermes", "nodes"), default="openai")
    parser.add_argument("--since", type=_moment, metavar="DATE", help="only those that ended on this day or later")
    parser.add_argument("--min-turns", type=int, default=0, metavar="N", help="only those with at least N answers")
    parser.add_argument("--only-complete", action="store_true", help="only those that were not broken off")
    help = "with --format nodes: DeepSeek's tokenizer.json, for tokens and masks"
    parser.add_argument("--tokenizer", metavar="FILE", default=argparse.SUPPRESS, help=help)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the file to write (default: print)")


def _moment(text: str) -> float:
    """A day or a time of this machine's clock."""
    # The others are for years that the system does not know.
    with contextlib.suppress(ValueError, OverflowError, OSError):
        return datetime.fromisoformat(text).timestamp()
    raise argparse.ArgumentTypeError(f"{text!r} is no date, such as 2026-11-17 or 2026-11-17T08:00")


def list_sessions(options: dict[str, Any]) -> None:
    with _open(load(options).config) as store:
        sessions = store.list(None)
    if not sessions:
        print('No sessions yet. POST /sessions/create makes one, and record = "all" records every chat.')
        return
    print(f"{'session':<36}  {'last use':<16}  {'requests':>8}  {'nodes':>5}  {'tokens':>11}  name")
    for session in sessions:
        used = _time(session.used_at)
        counts = f"{session.requests:>8,}  {session.nodes:>5,}  {session.tokens:>11,}"
        print(f"{session.uuid}  {used}  {counts}  {safe_text(session.options.name, 60)}")


def show_session(options: dict[str, Any]) -> None:
    with _open(load(options).config) as store:
        session = _find(store, options["session"])
        print(f"session {session.uuid}  {safe_text(session.options.name, 200)}")
        print(f"created {_time(session.created_at)}, last used {_time(session.used_at)}, requests {session.requests:,}")
        for node in store.nodes(session.uuid):
            _show_node(node)


def export_sessions(options: dict[str, Any]) -> None:
    """Write the nodes of the named sessions, or of all, to a file or to standard output."""
    chosen = export.Filter(options["since"], options["min_turns"], options["only_complete"])
    config, form = load(options).config, options["format"]
    tokenizer = _tokenizer(config) if form == "nodes" else None
    with _open(config) as store:
        sessions = [_find(store, session) for session in options["sessions"]] or store.list(None)[::-1]
        with _output(options["output"]) as file:
            nodes = (node for session in sessions for node in store.nodes(session.uuid))
            counted = _with_progress(nodes, sum(session.nodes for session in sessions))
            written = sum(1 for line in export.lines(counted, form, chosen, tokenizer) if file.write(line))
            file.flush()
    print(f"deepseek-cursor-proxy: trajectories written: {written:,}", file=sys.stderr)


def _with_progress(nodes: Iterator[Node], total: int) -> Iterator[Node]:
    """The nodes; a line on standard error says how far it is, if that is a terminal."""
    is_shown = sys.stderr.isatty() and total > _NODES_PER_UPDATE
    for done, node in enumerate(nodes, 1):
        if is_shown and done % _NODES_PER_UPDATE == 0:
            sys.stderr.write(f"\r{done:,} of {total:,} nodes")
            sys.stderr.flush()
        yield node
    if is_shown:
        sys.stderr.write("\r\x1b[K")


@contextlib.contextmanager
def _open(config: ProxyConfig) -> Iterator[SessionStore]:
    path = sessions_path(config.reasoning_content_path)
    try:
        # Reading creates no file: without one, an empty store in memory stands for it.
        place = path if path.exists() else Path(":memory:")
        with contextlib.closing(SessionStore(place, must_open=True)) as store:
            yield store
    except Unusable as fault:
        raise StartupError(f"cannot read {path}: {fault}") from None


def _find(store: SessionStore, session: str) -> Session:
    """A session by its id, or by the beginning of it."""
    sessions = [listed for listed in store.list(None) if listed.uuid.startswith(session)]
    if len(sessions) == 1:
        return sessions[0]
    reason = "several sessions begin" if sessions else "no session begins"
    raise StartupError(f"{reason} with {safe_text(session, 60)}; `{program_name()} sessions list` shows their ids")


@contextlib.contextmanager
def _output(path: Path | None) -> Iterator[BinaryIO]:
    if path is None:
        yield sys.stdout.buffer
        return
    try:
        # Prompts and answers: for the owner alone.
        private_files.create(expand_home(path))
        with expand_home(path).open("wb") as file:
            yield file
    except OSError as error:
        raise StartupError(f"cannot write {path}: {error.strerror}; choose another file with -o") from None


def _tokenizer(config: ProxyConfig) -> BpeTokenizer | None:
    try:
        return None if config.tokenizer is None else read_tokenizer(config.tokenizer)
    except (OSError, ValueError) as error:
        raise StartupError(f"cannot use the tokenizer {config.tokenizer}: {error}") from None


def _show_node(node: Node) -> None:
    parent = "" if node.parent is None else f", branch of {node.parent}"
    print(f"\nnode {node.id}{parent}: {len(node.messages)} messages")
    for message in node.messages:
        thoughts = reasoning_of(message)
        if thoughts:
            print(f"  {'thinking':<10} {safe_text(thoughts, _LONGEST_TEXT)}")
        content = message.get("content")
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        print(f"  {message['role']:<10} {safe_text(text, _LONGEST_TEXT)}")
        for call in message.get("tool_calls", ()):
            function = call["function"]
            print(f"  {'call':<10} {safe_text(function['name'], 60)} {safe_text(function['arguments'], _LONGEST_TEXT)}")


def _time(moment: float) -> str:
    return datetime.fromtimestamp(moment).isoformat(" ", "minutes")


COMMANDS = (
    Command("list", "all sessions, newest first", list_sessions),
    Command("show", "the trajectories of one session, with their thinking", show_session, add_session),
    Command("export", "trajectories as lines of JSON, for training", export_sessions, add_export),
)
