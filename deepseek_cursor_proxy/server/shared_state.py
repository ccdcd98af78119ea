"""What worker processes share besides the store's file: `share` in each of them, `relay` in the supervisor.

    access      pinned and accepted keys, wrong ones: every change reaches all, and a new process gets all so far
    jobs        found, followed and cancelled in the process that runs them
    responses   unfinished: when a process dies, the supervisor marks those as failed that no other has in work
    callers     not known yet: their responses and sessions are in the memory of one process, which others ask
    sessions    turns that another process has yet to write are written before they are read
    records     of requests that ended, for the dashboard and the metrics

Breakers, key pools, the chat memory and the outlines of chats stay in each process; call limits are divided by their
number (`ProxyConfig.most_calls`).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from deepseek_cursor_proxy.exchange.background_jobs import Job
from deepseek_cursor_proxy.exchange.services import ProcessRole, Services
from deepseek_cursor_proxy.http1.lull import BLOCKING, Lull
from deepseek_cursor_proxy.net.channel import ASK_SECONDS, Channel
from deepseek_cursor_proxy.server.proxy_server import DeepSeekProxyServer
from deepseek_cursor_proxy.server.worker_processes import WorkerProcesses
from deepseek_cursor_proxy.storage.responses import unpack_events

Handlers = Mapping[str, Callable[..., Any]]


# No number of a request twice: a process that takes the place of another counts on from far away.
_NUMBERS_PER_START = 100_000
# Questions to all other worker processes.
_QUESTIONS = ("response", "session", "flush", "job", "read job", "cancel job")


class RemoteJob(Job):
    """A job of another worker process. Any thread may call it."""

    def __init__(self, id: str, caller: bytes, services: Services, ask: Callable[..., Any]) -> None:
        self.id = id
        self.caller = caller
        self._services = services
        self._ask = ask

    def read_after(self, count: int, seconds: float) -> bytes | Lull | None:
        events = self._ask("read job", self.caller, self.id, count, seconds)
        if events is not None:
            return bytes(events) or BLOCKING
        # It is over: the store has all of its events, unless its process died.
        stored = self._services.responses.get(self.caller, self.id)
        packed = stored.events if stored is not None else None
        return b"".join(unpack_events(packed))[count:] or None if packed is not None else None

    def interrupt(self) -> bool:
        return bool(self._ask("cancel job", self.caller, self.id))

    def wait(self, seconds: float) -> bool:
        """The process that runs it has waited for its end."""
        return True


def share(services: Services, channel: Channel) -> Handlers:
    """Share the state of a worker process. Returns what answers the messages of the others."""

    def ask(name: str, *values: Any) -> Any:
        answers = channel.ask(name, *values)(ASK_SECONDS)
        return answers[0] if answers else None

    def find_job(caller: bytes, id: str) -> Job | None:
        return RemoteJob(id, caller, services, ask) if ask("job", caller, id) else None

    def read_job(caller: bytes, id: str, count: int, seconds: float) -> bytes | None:
        job = jobs.find_own(caller, id)
        events = job.read_after(count, seconds) if job is not None else None
        return b"" if isinstance(events, Lull) else events

    def cancel_job(caller: bytes, id: str) -> bool | None:
        if (job := jobs.find_own(caller, id)) is None:
            return None
        is_first = jobs.cancel(job)
        # Less than the question may take.
        job.wait(ASK_SECONDS / 2)
        return is_first

    access, jobs, responses, sessions = services.access, services.jobs, services.responses, services.sessions
    access.share(partial(channel.post, "access"))
    jobs.find_elsewhere = find_job
    responses.find_elsewhere = partial(ask, "response")
    sessions.find_elsewhere = partial(ask, "session")
    sessions.flush_elsewhere = partial(ask, "flush")
    if services.config.admin_port:
        services.request_log.subscribe(partial(channel.post, "record"))
    return {
        "access": access.apply,
        "in work": responses.in_work,
        "response": responses.find_unaccepted,
        "session": sessions.find_pending,
        "flush": partial(sessions.flush_own, empties_journal=True),
        "job": lambda caller, id: jobs.find_own(caller, id) is not None or None,
        "read job": read_job,
        "cancel job": cancel_job,
    }


def relay(server: DeepSeekProxyServer, module: str) -> WorkerProcesses:
    """Worker processes for a server that accepts no clients itself: what they share is passed on here."""
    count = server.config.workers
    workers = WorkerProcesses(module, count, server.socket)
    server.role = ProcessRole(serves_clients=False)
    services = server.services()
    access, responses = services.access, services.responses
    starts: Counter[int] = Counter()

    def change_access(slot: int, kind: str, value: bytes) -> None:
        if kind == "pinned":
            # The first of all processes counts, also in one that has pinned another key meanwhile.
            value, slot = dict(access.changes()).get("pinned", value), 0
        access.apply(kind, value)
        workers.post("access", kind, value, but=slot)

    def set_up(slot: int) -> tuple[Any, ...]:
        first = slot + starts[slot] * _NUMBERS_PER_START * count
        starts[slot] += 1
        role = ProcessRole(is_first=False, run=services.request_log.run, first_number=first, step=count)
        return server.config, slot - 1, {"role": role, "probe": server.probe, "dashboard_url": server.dashboard_url}

    def catch_up(channel: Channel) -> None:
        channel.post("reload", server.config)
        channel.post("tunnel", server.tunnel_url)
        for change in access.changes():
            channel.post("access", *change)

    def end_work(slot: int) -> None:
        responses.fail_orphans()
        services.sessions.recover()

    responses.in_work_elsewhere = lambda: set().union(*workers.ask("in work"))
    workers.setup, workers.on_ready, workers.on_death = set_up, catch_up, end_work
    workers.handlers = lambda slot: {
        "access": partial(change_access, slot),
        "record": services.request_log.add,
        **{name: partial(workers.ask, name, but=slot) for name in _QUESTIONS},
    }
    return workers
