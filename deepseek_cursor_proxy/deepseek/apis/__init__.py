"""DeepSeek's three APIs: the canonical request as a body, the answer or its events as deltas.

    api                   UpstreamApi, the interface that the exchange uses
    chat_api              chat completions (with request_json); chat_stream: its events (with repeated_chunks)
    responses_api         Responses; responses_stream: its events
    messages_api          Messages; messages_stream: its events
    joined_completion     a streamed completion as a plain one

Other folders import all of them but request_json.
"""
