"""What DeepSeek (and other hosts of its models) accepts, requires and answers; no I/O.

    rules, images        its requirements and limits
    history_repair       makes a tool history that it accepts
    api                  UpstreamApi, the interface of its two APIs: chat_api (with request_json), responses_api
    hosts                how other hosts of its models differ (with reasoning_names, think_tags)
    chat_stream          reads its event streams (with repeated_chunks, call_indexes)
    tool_names           names of tools that it accepts; call_names: the client's names in its answers
    tool_schemas         schemas of tools that it accepts
    forced_tools         turns text that means a forced tool call into the call
    model_names          the models it serves; model_resolver: what a client's name means
    error_messages       adds the remedy to its errors

Other folders import all of them but request_json and tool_schemas.
"""
