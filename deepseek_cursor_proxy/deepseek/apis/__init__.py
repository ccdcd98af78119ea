"""DeepSeek's three APIs: the canonical request as a body, the answer or its events as deltas.

    api                   UpstreamApi, the interface that the exchange uses
    chat_api              chat completions; chat_stream: readers of its event stream (with repeated_chunks)
    responses_api         Responses
    messages_api          Messages
    joined_completion     a streamed completion as a plain one

Other folders import all of them.
"""
