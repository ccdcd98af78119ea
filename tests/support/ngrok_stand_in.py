"""A stand-in for ngrok 3.20: a real process with its JSON log and its API, but no network; and the agents of others."""

import http.server
import json
import shlex
import socketserver
import sys
import threading
from pathlib import Path
from typing import Any

PORT = 9000  # never opened: only ngrok would connect to it
URL = "https://first.ngrok-free.app"
NEW = "https://second.ngrok-free.app"

# Each launch plays the next part of plan.json; the last one repeats. `urls` has one answer per look at the API,
# `dies` is the number of the last look.
STAND_IN = """
import json, os, signal, socketserver, sys, threading

home = os.path.dirname(__file__)
with open(os.path.join(home, "plan.json")) as file:
    plan = json.load(file)
launches = os.path.join(home, "launches")
with open(launches) as file:
    part = plan[min(len(file.readlines()), len(plan) - 1)]
urls, path, looks = part.get("urls", []), part.get("path", "/api/endpoints"), []
guard = threading.Timer(30, os._exit, [1])  # a broken test leaves nothing behind for longer
guard.daemon = True
guard.start()
if part.get("deaf"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


class Api(socketserver.StreamRequestHandler):  # http.server takes longer to import than all the rest
    def handle(self):
        asked = self.rfile.readline().decode().split()[1]
        while self.rfile.readline().strip():
            pass
        if asked != path:
            return self.wfile.write(b"HTTP/1.0 404 Not Found\\r\\n\\r\\n")
        url = urls.pop(0) if len(urls) > 1 else urls[0]
        new = {"name": "x", "url": url, "upstream": {"url": "http://localhost:" + sys.argv[2]}}
        old = {"name": "x", "public_url": url, "proto": "https", "config": {"addr": "http://localhost:" + sys.argv[2]}}
        body = {"endpoints": [new]} if path == "/api/endpoints" else {"tunnels": [old]}
        body = json.dumps(body if url else {"endpoints": []}).encode()
        self.wfile.write(b"HTTP/1.0 200 OK\\r\\n\\r\\n" + body)
        looks.append(url)
        if len(looks) == part.get("dies"):
            os._exit(1)


def launched(port):
    with open(launches, "a") as file:
        print(json.dumps([os.getppid(), port, sys.argv[1:]]), file=file)


if urls:
    server = socketserver.TCPServer(("127.0.0.1", 0), Api)
    launched(server.server_address[1])
    address = "127.0.0.1:%d" % server.server_address[1]
    print(json.dumps({"lvl": "info", "msg": "starting web service", "obj": "web", "addr": address}), flush=True)
else:
    launched(0)
for line in part.get("log", []):
    print(line if isinstance(line, str) else json.dumps(line), flush=True)
if "log" in part and not part.get("stays"):
    sys.exit(1)
server.serve_forever() if urls else threading.Event().wait()
"""

Part = dict[str, Any]

OK: Part = {"urls": [URL]}
OK_ELSEWHERE: Part = {"urls": [NEW]}
DIES: Part = {"urls": [URL], "dies": 2}
NEVER: Part = {"urls": [""]}


def fails(error: str) -> Part:
    return {"log": [{"lvl": "info", "msg": "open config file", "err": None}, {"lvl": "eror", "err": error}]}


def logs(*lines: object) -> Part:
    started = {"lvl": "info", "msg": "started tunnel", "url": URL, "addr": f"http://localhost:{PORT}"}
    return {"log": [*lines, started], "stays": True}


class Agent:
    """Somebody else's agent: answers each path with the bytes it was given, everything else with 404."""

    def __init__(self, pages: dict[str, bytes]) -> None:
        class Api(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = pages.get(self.path)
                if page is None:
                    return self.send_error(404)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(page)
                return None

            def log_message(self, *_: object) -> None: ...

        self._server = socketserver.TCPServer(("127.0.0.1", 0), Api)
        self.api = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def tunnels(addr: object = f"http://localhost:{PORT}", url: object = URL) -> bytes:
    return json.dumps({"tunnels": [{"name": "x", "public_url": url, "config": {"addr": addr}}]}).encode()


def endpoints(addr: object = f"http://localhost:{PORT}", url: object = URL) -> bytes:
    return json.dumps({"endpoints": [{"name": "x", "url": url, "upstream": {"url": addr}}]}).encode()


def install(binary: Path, prefix: str = "", suffix: str = "") -> None:
    """Make `binary` a script that runs the stand-in beside it."""
    script = str(binary.parent / "stand_in.py")
    if sys.platform == "win32":
        binary.write_text(f'@"{sys.executable}" -S -E "{script}" %*\n')
    else:
        command = shlex.join([sys.executable, "-S", "-E", script])
        binary.write_text(f'#!/bin/sh\n{prefix}{command} "$@"{suffix}\n')
        binary.chmod(0o755)
