"""Tools: names and schemas that DeepSeek accepts, the calls in its answers, the tools that it runs itself.

    tool_definitions  names and schemas of functions that it accepts
    server_tools      the tools that it runs itself, and what these add to a message
    answer_calls      gives each call of an answer its index and id; makes forced calls of text that means them
    written_calls     makes calls of those that a model wrote into its text; call_forms: in which forms

Other folders import all but call_forms.
"""
