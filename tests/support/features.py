"""Tests that need a feature are skipped where it was taken away."""

import unittest
from collections.abc import Callable
from typing import Any, TypeVar

from deepseek_cursor_proxy import proxy

T = TypeVar("T", bound=Callable[..., Any])


def needs(*features: str) -> Callable[[T], T]:
    missing = [feature for feature in features if not proxy.has(feature)]
    return unittest.skipIf(bool(missing), f"there is no {', '.join(missing)}")
