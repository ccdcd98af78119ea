"""The endpoints of the proxy, by API. `api/routes.py` has their paths, and imports each with its first request.

chat, messages      generations as chat completions and as Anthropic's messages
responses           generations as responses: their input (response_input), and those that are stored
                    (stored_responses)
sessions            recorded sessions
models              the models that clients are offered
health, start_page  signs of life, for programs and for browsers
"""
