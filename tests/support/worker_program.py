"""A stand-in for a worker process: it serves nothing, and imports little, so that it starts quickly."""

import os
import signal
import socket
import threading

from deepseek_cursor_proxy.net.channel import Channel


def main(channel: int, listener: int, counts: int) -> int:
    """A worker process: as its setup says, it ends at once, or is ready and answers with its process id."""
    over, setups = threading.Event(), []
    is_known = threading.Event()

    def set_up(how: str) -> None:
        setups.append(how)
        is_known.set()

    handlers = {
        "setup": set_up,
        "pid": os.getpid,
        "end": lambda: os._exit(3),
        "same": lambda value: value,
        "stop": over.set,
    }
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    link = Channel(socket.socket(fileno=channel), handlers, over.set)
    is_known.wait()
    if setups == ["fail"]:
        return 2
    link.post("ready")
    if setups != ["crash"]:
        over.wait()
    link.close()
    return 0
