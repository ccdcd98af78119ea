"""What DeepSeek (and other hosts of its models) accepts, requires and answers; no I/O.

    rules                its requirements and limits
    images               images and files: their limits, and placeholders for models that see none
    history_repair       makes a tool history that it accepts
    api                  UpstreamApi: what the exchange needs to know about one of its APIs
    chat_api             chat completions: requests as bodies, answers as deltas; chat_stream: its events as deltas
    usage                figures in its answers: tokens and log probabilities
    prices               what tokens cost and when: its table, peak hours, the settings; the Cost of a request
    tool_definitions     names and schemas of functions that it accepts
    server_tools         the tools that it runs itself, and what these add to a message
    hosts                how other hosts of its models differ
    model_names          the models it serves; model_resolver: what a client's name means
    error_messages       adds the remedy to its errors

Its other two APIs, which run web searches, are in `features/web_search`. Other folders import all of them.
"""
