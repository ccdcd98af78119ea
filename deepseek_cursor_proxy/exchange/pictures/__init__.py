"""Pictures for a model that sees none: their descriptions, made by a model that does.

    picture_texts      the descriptions that one request needs
    picture_describer  the call that makes one of them
    shared_calls       calls that several requests want at the same time, made once

Other folders import picture_texts.
"""
