import unittest
from collections.abc import Callable
from unittest import mock

from deepseek_cursor_proxy.api import endpoint
from deepseek_cursor_proxy.conversation import Batch, Batches, Delta
from deepseek_cursor_proxy.errors import ClientGone, ProxyError, UpstreamTimeout
from deepseek_cursor_proxy.http1.messages import HttpReply

SAYS = [Delta(text="a")]
END = [Delta(text="z", finish_reason="stop")]


class Writer:
    """Writes text in brackets; a failure by its code, or not at all."""

    def __init__(self, *, can_fail: bool = True, bug: Exception | None = None) -> None:
        self._can_fail = can_fail
        self._bug = bug

    def begin(self) -> bytes:
        return b"["

    def write(self, batch: Batch) -> bytes:
        if self._bug is not None:
            raise self._bug
        return "".join(item.text or "" for item in batch if isinstance(item, Delta)).encode()

    def end(self) -> bytes:
        return b"]"

    def fail(self, error: ProxyError) -> bytes:
        if not self._can_fail:
            raise ClientGone
        return f"!{error.code}".encode()


def new_exchange() -> mock.Mock:
    return mock.Mock(cache_state="")


class Source:
    """Batches that may end in an error; knows whether they were closed."""

    def __init__(self, *batches: Batch, error: BaseException | None = None) -> None:
        self._batches = batches
        self._error = error
        self.is_closed = False

    def __call__(self) -> Batches:
        try:
            yield from self._batches
            if self._error is not None:
                raise self._error
        finally:
            self.is_closed = True


class TestStream(unittest.TestCase):
    def setUp(self) -> None:
        self.exchange = new_exchange()

    def written(self, source: Source, writer: Writer | None = None) -> list[bytes]:
        return list(endpoint.write_events(self.exchange, source(), writer or Writer()))

    def test_a_stream_has_a_beginning_its_batches_and_an_end(self) -> None:
        self.assertEqual([b"[", b"a", b"z", b"]"], self.written(Source(SAYS, END)))

    def test_a_failure_is_written_by_the_writer(self) -> None:
        for error, code in (
            (UpstreamTimeout("silent"), b"!upstream_timeout"),
            (ValueError("not writable"), b"!upstream_error"),
            (RecursionError(), b"!upstream_error"),
        ):
            self.assertEqual([b"[", b"a", code], self.written(Source(SAYS, error=error)))

    def test_a_bug_is_logged_and_told_and_ends_the_exchange(self) -> None:
        source, bug = Source(SAYS, END), KeyError("x")
        with self.assertLogs(endpoint.__name__, "ERROR") as logged:
            self.assertEqual([b"[", b"!internal_error"], self.written(source, Writer(bug=bug)))
        self.assertTrue(source.is_closed)
        # With the error, not as if its client had left.
        self.exchange.fail.assert_called_once_with(bug)
        self.assertIn("unexpected KeyError while streaming an answer", logged.output[0])

    def test_a_client_that_left_is_told_nothing(self) -> None:
        events = endpoint.write_events(self.exchange, Source(SAYS, error=ClientGone())(), Writer())
        self.assertEqual([b"[", b"a"], [next(events), next(events)])
        with self.assertRaises(ClientGone):
            next(events)

    def test_closing_the_body_closes_events_batches_and_exchange(self) -> None:
        source, exchange = Source(SAYS, END), new_exchange()
        body = endpoint.stream_reply(exchange, endpoint.write_events(exchange, source(), Writer())).body
        assert not isinstance(body, bytes)
        pieces = iter(body)
        self.assertEqual([b"[", b"a"], [next(pieces), next(pieces)])
        body.close()
        self.assertTrue(source.is_closed and exchange.close.called)


class TestPlain(unittest.TestCase):
    def setUp(self) -> None:
        self.exchange = new_exchange()

    def reply(self, source: Source, writer: Writer | None = None, *, is_late: bool = False) -> HttpReply:
        seconds = 0.0 if is_late else 3600.0
        return endpoint.plain_reply(self.exchange, source(), writer or Writer(), seconds)

    def late_body(self, source: Source, writer: Writer | None = None) -> Callable[[], bytes]:
        found = self.reply(source, writer, is_late=True)
        self.assertEqual((200, (("Content-Type", "application/json"),)), (found.status, found.headers))
        assert not isinstance(found.body, bytes)
        pieces = iter(found.body)
        return lambda: next(pieces)

    def test_a_quick_answer_is_a_body_and_the_exchange_is_closed(self) -> None:
        found = self.reply(Source(SAYS, END))
        self.assertEqual((200, b"]", (("Content-Type", "application/json"),)), found)
        self.exchange.close.assert_called()

    def test_an_early_failure_is_raised_as_it_is_and_the_exchange_is_closed(self) -> None:
        for error in (UpstreamTimeout("silent"), KeyError("a bug"), ClientGone()):
            self.exchange = new_exchange()
            with self.assertRaises(type(error)):
                self.reply(Source(SAYS, error=error))
            self.exchange.close.assert_called()

    def test_a_late_answer_begins_with_blanks(self) -> None:
        read = self.late_body(Source(SAYS, SAYS, END))
        self.assertEqual([b" ", b" ", b"]"], [read(), read(), read()])

    def test_no_blank_follows_the_finish_so_that_its_failure_can_have_a_status(self) -> None:
        self.assertEqual(b"]", self.reply(Source(END), is_late=True).body)

    def test_a_late_failure_is_the_value_where_the_api_has_words_for_it(self) -> None:
        read = self.late_body(Source(SAYS, error=UpstreamTimeout("silent")))
        self.assertEqual([b" ", b"!upstream_timeout"], [read(), read()])

    def test_a_late_failure_breaks_the_reply_off_where_the_api_has_none(self) -> None:
        read = self.late_body(Source(SAYS, error=UpstreamTimeout("silent")), Writer(can_fail=False))
        self.assertEqual(b" ", read())
        with self.assertRaises(ClientGone):
            read()
