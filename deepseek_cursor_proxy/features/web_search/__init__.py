"""DeepSeek's own web search: the two APIs of DeepSeek that have it. No I/O.

responses_api    for clients of the Responses API and of chat completions
messages_api     for clients of the Messages API
"""
