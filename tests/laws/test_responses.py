"""The law of this project over generated chains: every reasoning is restored, by id or by echoed items."""

import contextlib
import json
import unittest
from pathlib import Path
from typing import Any
from unittest import mock
from zlib import decompress

from deepseek_cursor_proxy.storage.private_files import InstallationSecret
from deepseek_cursor_proxy.storage.responses import ResponseStore
from tests.support.generated_chains import Proxy, TwoCallers
from tests.support.width import width

CHAINS = width(100, 2_000, 20_000)


class TestChains(unittest.TestCase):
    def setUp(self) -> None:
        """What is remembered of a stored response is what is stored, to the type of every value."""
        remembered = ResponseStore._unpack

        def checked(store: ResponseStore, packed: bytes) -> Any:
            found = remembered(store, packed)
            self.assertEqual(repr(json.loads(decompress(packed))), repr(found.value))
            return found

        self.enterContext(mock.patch.object(ResponseStore, "_unpack", checked))

    def test_every_reasoning_is_restored_by_previous_response_id_and_by_echoed_items(self) -> None:
        secret = InstallationSecret(Path(":memory:"))
        with contextlib.closing(Proxy(secret)) as proxy, contextlib.closing(Proxy(secret)) as other:
            # Two chains each.
            for seed in range(CHAINS // 2):
                with self.subTest(seed=seed):
                    twins = TwoCallers(seed, proxy)
                    for _ in range(3 if seed % 8 == 0 else 2):
                        twins.step()
                    if seed % 8 == 0:
                        twins.move(other)
            self.assertGreater(proxy.services.responses.stats().responses, CHAINS // 2)

    def test_every_reasoning_of_a_long_chain_is_restored(self) -> None:
        with contextlib.closing(Proxy(InstallationSecret(Path(":memory:")))) as proxy:
            for seed in range(width(1, 3)):
                with self.subTest(seed=seed):
                    twins = TwoCallers(seed, proxy)
                    for _ in range(20):
                        twins.step()
