"""Tools: names and schemas that DeepSeek accepts, and the tools that it runs itself.

tool_definitions  names and schemas of functions that it accepts
server_tools      the tools that it runs itself, and what these add to a message
"""
