"""DeepSeek's APIs: the canonical request as a body, the answer or its events as deltas.

    api                   UpstreamApi, the interface that the exchange uses
    chat_api              chat completions; chat_stream: readers of its event stream

The other two, which run web searches, are in `features/web_search`.
Other folders import all of them.
"""
