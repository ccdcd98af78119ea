"""Values that are refused with a 400 that names the bad field."""

import unittest
from collections.abc import Callable
from typing import Any

from deepseek_cursor_proxy.errors import BadRequest


def assert_named(test: unittest.TestCase, read: Callable[[Any], object], prefix: str, *rows: tuple[Any, ...]) -> None:
    """Each row is the end of a field's name and the values for which `read` names that field."""
    for end, *values in rows:
        for value in values:
            with test.subTest(f"{prefix}{end}", value=value), test.assertRaises(BadRequest) as caught:
                read(value)
            test.assertEqual(f"{prefix}{end}", caught.exception.param)
            test.assertIn(f"{prefix}{end}", caught.exception.message)
