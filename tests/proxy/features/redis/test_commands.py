from tests.support.engine_cases import CommandTests
from tests.support.resp_server import RespServer


class TestCommandsOnTheStandIn(CommandTests):
    def setUp(self) -> None:
        self.server = self.enterContext(RespServer())
        self.url = self.server.url
        super().setUp()


del CommandTests
