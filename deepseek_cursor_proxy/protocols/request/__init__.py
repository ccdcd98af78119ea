"""Client JSON of any shape -> ChatRequest: every API's body is read here, whatever the endpoint.

    parse              the entrance; the plain fields of a body, whether to think and with which effort
    messages           chat messages, with the content of any API (content)
    responses_items    the items of the Responses API
    tools              tools of every shape, and the names of those in namespaces
    custom_tools       calls of tools that take free text

Other folders import parse, content, custom_tools, responses_items.
"""
