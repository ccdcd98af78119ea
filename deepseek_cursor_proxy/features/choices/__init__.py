"""Several answers to one request (n > 1): `exchanges` has one exchange per answer, `feature` opens them."""
