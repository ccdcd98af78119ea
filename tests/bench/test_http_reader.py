"""The end of an answer is found however it is cut into pieces."""

import unittest

from tests.bench import http_reader
from tests.bench.http_reader import ResponseReader
from tests.support.processes import BenchmarkFailed

SIZED = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
EMPTY = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"


class TestResponseReader(unittest.TestCase):
    def test_the_end_of_a_response_is_found_however_it_is_split(self) -> None:
        for answer in (SIZED, CHUNKED, EMPTY):
            self.assertTrue(ResponseReader().feed(answer))
            by_byte = ResponseReader()
            self.assertEqual(
                [by_byte.feed(answer[at : at + 1]) for at in range(len(answer))], [False] * (len(answer) - 1) + [True]
            )
            for cut in range(1, len(answer)):
                reader = ResponseReader()
                self.assertEqual((reader.feed(answer[:cut]), reader.feed(answer[cut:])), (False, True))

    def test_a_stream_without_its_last_event_is_not_done(self) -> None:
        completed, failed = b'"usage":{"total_tokens":12}}}\n\n', b'"usage":null}}\n\n'
        for answer, is_done in (
            (CHUNKED, True),
            (EMPTY, False),
            (CHUNKED.replace(b"data: [DONE]\n\n", completed), True),
            (CHUNKED.replace(b"data: [DONE]\n\n", failed), False),
            (CHUNKED.replace(b"data: [DONE]\n\n", b'data: {"type":"message_stop"}\n\n'), True),
        ):
            with self.subTest(answer):
                reader = ResponseReader()
                reader.feed(answer)
                self.assertEqual(reader.is_done_stream, is_done)

    def test_a_connection_is_reused_unless_the_response_closes_it(self) -> None:
        closing = SIZED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        for answer, closes in ((SIZED, False), (CHUNKED, False), (closing, True), (SIZED.replace(b".1", b".0"), True)):
            reader = ResponseReader()
            reader.feed(answer)
            self.assertEqual(reader.closes, closes)

    def test_an_answer_without_a_length_ends_with_its_connection(self) -> None:
        reader = ResponseReader()
        self.assertFalse(reader.feed(b"HTTP/1.0 200 OK\r\n\r\nhello"))
        self.assertTrue(reader.feed(b""))
        self.assertTrue(reader.closes)

    def test_a_response_with_a_length_that_is_cut_is_a_failure(self) -> None:
        for answer in (b"", b"HTTP/1.1 200", SIZED[:-1], CHUNKED[:-1]):
            reader = ResponseReader()
            with self.assertRaisesRegex(BenchmarkFailed, "broken off"):
                reader.feed(answer)
                reader.feed(b"")

    def test_a_status_other_than_200_is_a_failure(self) -> None:
        with self.assertRaisesRegex(BenchmarkFailed, "503.*Busy"):
            ResponseReader().feed(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 5\r\n\r\nBusy.")

    def test_the_body_is_returned_without_its_chunk_sizes(self) -> None:
        self.assertEqual(http_reader.body(SIZED), b"hello")
        self.assertEqual(http_reader.body(CHUNKED), b"hellodata: [DONE]\n\n")
