import errno
import unittest
from unittest import mock

from deepseek_cursor_proxy.api import routes
from deepseek_cursor_proxy.api.routes import App
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.errors import Overloaded
from deepseek_cursor_proxy.http1.messages import HttpRequest
from deepseek_cursor_proxy.proxy import ROUTES


class TestWithoutDescriptors(unittest.TestCase):
    def test_a_first_request_is_refused_by_the_services_and_logged(self) -> None:
        app = App(ProxyConfig(), mock.Mock(side_effect=Overloaded("Too many.", retry_after=1)), ROUTES)
        no_import = mock.patch.object(routes, "_load_endpoint", side_effect=OSError(errno.EMFILE, "no files"))
        for method, path, status, line in (
            ("POST", "/v1/chat/completions", 503, "chat completions refused: 503 Too many."),
            ("GET", "/nowhere", 404, "GET /nowhere refused: 404 Unknown path"),
        ):
            with self.subTest(path), no_import, self.assertLogs(level="INFO") as logs:
                self.assertEqual(status, app(HttpRequest(method, path, "", {})).status)
            self.assertIn(line, logs.output[0])
