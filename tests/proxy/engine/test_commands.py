from tests.support.engine_cases import CommandTests
from tests.support.resp_server import RespServer


class TestCommandsOnTheStandIn(CommandTests):
    def setUp(self) -> None:
        self.server = self.enterContext(RespServer())
        self.url = self.server.url
        super().setUp()


class TestCommandsInTheOldProtocol(TestCommandsOnTheStandIn):
    def setUp(self) -> None:
        super().setUp()
        self.server.knows_hello = False

    def test_sorted_sets(self) -> None:
        self.assert_replies((1, (b"ZADD", b"k", b"2.5", b"b")), (b"2.5", (b"ZSCORE", b"k", b"b")))


del CommandTests
