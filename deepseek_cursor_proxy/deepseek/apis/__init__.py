"""DeepSeek's three APIs: the canonical request as a body, the answer or its events as deltas.

    api                   UpstreamApi, the interface that the exchange uses
    chat_api              chat completions; chat_stream: readers of its event stream
    responses_api         Responses
    messages_api          Messages

Other folders import all of them.
"""
