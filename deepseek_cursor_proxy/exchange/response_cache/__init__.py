"""The exact response cache: the same question of the same caller is answered as before, without a call.

    service     ResponseCache, which all requests share, and CacheLookup, its part in one exchange
    flights     identical questions in flight: one of them is sent, the others wait for its answer
    replay      records the bytes of an answer, and plays them again in the place of an upstream response

What is kept are the bytes of the upstream's stream, and a hit reads them as it would read the upstream's. So reasoning,
calls, searches, log probabilities and usage are those of the first answer, in every API, and whatever is done with an
answer on its way to the client is done with a hit as well.

Other folders import `service`, and `replay` to tell a hit.
"""
