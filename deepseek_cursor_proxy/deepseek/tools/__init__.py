"""Tools of a request as DeepSeek accepts them, and its calls as the client knows them.

    tool_names       names that it accepts
    tool_schemas     schemas that it accepts
    server_tools     tools that it runs itself, and which of its APIs runs which
    server_fields    what these add to a message of chat completions
    forced_tools     turns text that means a forced tool call into the call
    answer_calls     gives the calls of an answer what clients need of them: indexes, ids, the finish_reason
    written_calls    makes calls of those that a model wrote into its text; call_forms: in which forms; quotations

Other folders import all but tool_schemas, call_forms and quotations.
"""
