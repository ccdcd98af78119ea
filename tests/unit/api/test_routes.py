"""The table of routes."""

import unittest
from importlib import import_module

from deepseek_cursor_proxy.api.endpoint import Endpoint
from deepseek_cursor_proxy.api.routes import ROUTES


class TestTable(unittest.TestCase):
    def test_every_route_leads_to_an_endpoint(self) -> None:
        for route in ROUTES:
            with self.subTest(route.path.pattern):
                if isinstance(route.endpoint, str):
                    module, class_name, method = route.endpoint.split(".")
                    found = getattr(import_module(f"deepseek_cursor_proxy.api.{module}"), class_name)
                    self.assertTrue(issubclass(found, Endpoint) and callable(getattr(found, method)))
