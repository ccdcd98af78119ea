"""What DeepSeek (and other hosts of its models) accepts, requires and answers; no I/O.

    rules                its requirements and limits
    images               images and files: their limits, and placeholders for models that see none
    history_repair       makes a tool history that it accepts
    apis/                its three APIs: requests as bodies, answers and events as deltas
    usage                figures in its answers: tokens and log probabilities
    prices               what tokens cost and when: its table, peak hours, the settings; the Cost of a request
    tools/               names and schemas of tools that it accepts, tools that it runs itself
    hosts                how other hosts of its models differ
    model_names          the models it serves; model_resolver: what a client's name means
    error_messages       adds the remedy to its errors

Other folders import all of them.
"""
