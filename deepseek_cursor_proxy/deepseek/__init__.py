"""What DeepSeek (and other hosts of its models) accepts, requires and answers; no I/O.

    rules, images        its requirements and limits
    history_repair       makes a tool history that it accepts
    apis/                its three APIs: requests as bodies, answers and events as deltas
    usage, logprobs      figures in its answers
    pictures_in_words    text in place of pictures, for models that see none
    tools/               names and schemas of tools that it accepts, calls in its answers, forced calls
    hosts/               how other hosts of its models differ
    model_names          the models it serves; model_resolver: what a client's name means
    error_messages       adds the remedy to its errors

Other folders import all of them.
"""
