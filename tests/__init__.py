import unittest
from pathlib import Path
from types import ModuleType

from tests.support import parallel
from tests.support.width import scale_waits

scale_waits()


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, pattern: str | None) -> unittest.TestSuite:
    return parallel.shared(loader, pattern or "test*.py")


_load_module = unittest.TestLoader.loadTestsFromModule


def _load_module_or_folder(
    loader: unittest.TestLoader, module: ModuleType, *, pattern: str | None = None
) -> unittest.TestSuite:
    """Of a folder that the command line names, as `tests.unit`, unittest itself loads no test, and says OK."""
    is_named = module.__name__ not in loader._loading_packages  # type: ignore[attr-defined]
    if is_named and module.__name__.startswith("tests.") and hasattr(module, "__path__") and module.__file__:
        return loader.discover(str(Path(module.__file__).parent), pattern or "test*.py", str(Path(__file__).parents[1]))
    return _load_module(loader, module, pattern=pattern)


unittest.TestLoader.loadTestsFromModule = _load_module_or_folder  # type: ignore[assignment]
