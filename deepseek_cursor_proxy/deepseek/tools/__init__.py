"""Tools: names and schemas that DeepSeek accepts, the calls in its answers, the tools that it runs itself.

    tool_definitions  names and schemas of functions that it accepts
    server_tools      the tools that it runs itself, and what these add to a message
    written_calls     makes calls of those that a model wrote into its text
    call_markup       in which forms it writes them

Other folders import all but call_markup.
"""
