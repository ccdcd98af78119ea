"""Client JSON of any shape -> ChatRequest: every API's body is read here, whatever the endpoint.

    parse              the entrance; the plain fields of a body
    messages           chat messages, with the content of any API (content, anthropic_blocks)
    responses_items    the items of the Responses API
    tools              tools of every shape, and the names of those in namespaces
    custom_tools       calls of tools that take free text
    thinking_mode      whether to think, and with which effort
    field_checks       reads and checks a single field

Other folders import parse, custom_tools, field_checks, responses_items.
"""
