"""The laws over generated chains: whichever door a turn comes through, all reasoning is there in the next request."""

import contextlib
import os
import unittest
from pathlib import Path

from deepseek_cursor_proxy.secret_file import Secret
from tests.generated_chains import Proxy, Twins

CHAINS = 20_000 if os.environ.get("DEEPSEEK_CURSOR_PROXY_LONG_TESTS") else 2_000


class TestChains(unittest.TestCase):
    def test_every_reasoning_is_there_whichever_way_a_chain_goes(self) -> None:
        secret = Secret(Path(":memory:"))
        with contextlib.closing(Proxy(secret)) as proxy, contextlib.closing(Proxy(secret)) as other:
            # Two chains each.
            for seed in range(CHAINS // 2):
                with self.subTest(seed=seed):
                    twins = Twins(seed, proxy)
                    for _ in range(3 if seed % 8 == 0 else 2):
                        twins.step()
                    if seed % 8 == 0:
                        twins.move(other)
            self.assertGreater(proxy.services.responses.stats().responses, CHAINS // 2)

    def test_long_chains_too(self) -> None:
        with contextlib.closing(Proxy(Secret(Path(":memory:")))) as proxy:
            for seed in range(3):
                with self.subTest(seed=seed):
                    twins = Twins(seed, proxy)
                    for _ in range(20):
                        twins.step()
