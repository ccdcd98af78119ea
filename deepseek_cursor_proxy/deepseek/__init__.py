"""What DeepSeek (and other hosts of its models) accepts, requires and answers; no I/O.

    rules, images        its requirements and limits
    history_repair       makes a tool history that it accepts
    api                  UpstreamApi, the interface of its APIs: chat_api (with request_json), responses_api,
                         messages_api
    chat_stream          reads its event streams (with repeated_chunks); responses_stream, messages_stream: those of
                         its other APIs
    tools/               names and schemas of tools that it accepts, calls in its answers, forced calls
    hosts/               how other hosts of its models differ
    model_names          the models it serves; model_resolver: what a client's name means
    error_messages       adds the remedy to its errors

Other folders import all of them but request_json.
"""
