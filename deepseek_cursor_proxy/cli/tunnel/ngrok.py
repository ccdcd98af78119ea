"""ngrok: its URL comes from its JSON log or from the API that the log names, whichever is first.

The usual address of the API also lists what agents forward that the user started. Any program can listen there, so
such a URL has to lead to us before it is used. Written for ngrok 3; a reserved URL needs 3.16.
"""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from deepseek_cursor_proxy.cli.tunnel.program import Log, Program, RunningTunnel, get_json, leads_here

# Without `.internal`: only ngrok's other endpoints can reach those.
_PUBLIC_URL = re.compile(r"https://[A-Za-z0-9.-]+(?<!\.internal)(:[0-9]+)?")
_ERROR_CODE = re.compile(r"ERR_NGROK_([0-9]+)")
_TOKEN_LINE = re.compile(r"^\s*authtoken:\s*[^\s#]", re.MULTILINE)

_TOKEN = "`ngrok config add-authtoken <YOUR_TOKEN>` (get one at https://dashboard.ngrok.com/get-started/your-authtoken)"
_STOP_OTHER = "stop the other agent with `pkill ngrok` (on Windows `taskkill /IM ngrok.exe /F`)"


class Ngrok(Program):
    name = "ngrok"
    install = (
        "install it from https://ngrok.com/download (macOS: `brew install ngrok`), or use another tunnel: "
        "`--tunnel cloudflared` needs no account"
    )
    remedies = (
        (r"ERR_NGROK_(105|107|4018)\b", f"the auth token is missing or wrong: run {_TOKEN} ({{0}})"),
        (r"ERR_NGROK_108\b", f"this account allows one agent at a time: {_STOP_OTHER} ({{0}})"),
        (
            r"ERR_NGROK_334\b",
            f"the URL is already online elsewhere: {_STOP_OTHER} or start it with `--pooling-enabled` ({{0}})",
        ),
    )

    def __init__(
        self, port: int, url: str = "", binary: str = "", api_urls: Sequence[str] = ("http://127.0.0.1:4040",)
    ) -> None:
        super().__init__(port, url, binary)
        self._api_urls = tuple(api_urls)

    def arguments(self) -> Sequence[str]:
        reserved = (f"--url={self.url}",) if self.url else ()
        return ("http", str(self.port), *reserved, "--log=stdout", "--log-format=json")

    def manual(self) -> str:
        return f"ngrok http {self.port}"

    def read(self, log: Log, line: str) -> Log:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None  # plain text: a wrapper's message, or ngrok's last lines, `ERROR:  …`
        has_code = _ERROR_CODE.search(log.error)
        match record:
            case {"msg": "starting web service", "addr": str(address)}:
                return replace(log, api=f"http://{address}")
            case {"msg": "started tunnel", "url": str(url), "addr": str(target)} if _PUBLIC_URL.fullmatch(
                url
            ) and leads_here(target, self.port):
                return replace(log, url=url, error="")
            case {"lvl": "eror" | "error" | "crit", "err": str(error)} if _ERROR_CODE.search(error) or not has_code:
                return replace(log, error=error)
            case None if not has_code and (text := line.removeprefix("ERROR:").strip()):
                return replace(log, error=text)
        return log

    def child_urls(self, log: Log) -> list[str]:
        # A child without an API was configured so; the usual addresses are then those of other programs.
        answers = self._forwarded((log.api,) if log.api else ())
        return super().child_urls(log) if answers is None else answers

    def running(self) -> list[RunningTunnel]:
        known = [RunningTunnel(url, is_certain=False) for url in self._forwarded(self._api_urls) or ()]
        return known or super().running()

    def _forwarded(self, apis: Sequence[str]) -> list[str] | None:
        answers = [answer for api in apis if (answer := forwarded_urls(api, self.port)) is not None]
        urls = [url for answer in answers for url in answer if url == (self.url or url)]
        return urls if answers else None


def has_token(environment: Mapping[str, str]) -> bool:
    """Whether ngrok has an account: a token in the environment or in its configuration."""
    if environment.get("NGROK_AUTHTOKEN"):
        return True
    texts = []
    for path in _configurations(environment):
        try:
            texts.append(path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
    return any(map(_TOKEN_LINE.search, texts))


def _configurations(environment: Mapping[str, str]) -> list[Path]:
    home = Path(os.path.expanduser("~"))
    if sys.platform == "win32":
        first = Path(environment.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        first = home / "Library" / "Application Support"
    else:
        first = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    return [first / "ngrok" / "ngrok.yml", home / ".ngrok2" / "ngrok.yml"]


def forwarded_urls(api: str, port: int) -> list[str] | None:
    """The public URLs that the agent at `api` forwards to our port; None when none answers."""
    answer = None
    for path in ("/api/endpoints", "/api/tunnels"):
        match get_json(api + path):
            case {"endpoints": list(items)} | {"tunnels": list(items)}:
                answer = [url for item in items if (url := _forwarded_url(item, port))]
        if answer:
            break
    return answer


def _forwarded_url(item: object, port: int) -> str:
    match item:
        case {"url": str(url), "upstream": {"url": target}} | {"public_url": str(url), "config": {"addr": target}}:
            return url if _PUBLIC_URL.fullmatch(url) and leads_here(str(target), port) else ""
    return ""
