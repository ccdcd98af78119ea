"""What DeepSeek accepts, wants and says; no I/O.

`rules` and `history_repair` decide what is sent, `chat_api` and `responses_api` are its two APIs, `chat_stream` reads
its stream, `model_names` resolves what clients call a model, `error_messages` explains its refusals.
"""
