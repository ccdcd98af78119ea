"""What to enter in Cursor, whose settings are in a database of its own that nothing here touches. Pure."""

from collections.abc import Iterator, Mapping

# Names of Cursor's own for which it allows the whole context; others get 200,000 tokens.
_LONG_NAME = "gpt-5.6-sol"


def steps(base_url: str, key: str, model: str, *, is_public: bool) -> Iterator[str]:
    yield "In Cursor open Settings > Models."
    yield f"1. Add a model and switch it on          {model}"
    yield f"2. OpenAI API Key: paste and switch on   {key}"
    yield f"3. Override OpenAI Base URL: switch on   {base_url}"
    yield f"4. Choose {model} in the chat and ask something; the proxy prints four lines for it."
    if not is_public:
        yield ""
        yield "Cursor calls from its own servers, which cannot reach this address: start the proxy with a tunnel"
        yield "(`serve --tunnel`), then run this again for the public address."


def long_context(model: str, models: Mapping[str, str], config_path: str) -> Iterator[str]:
    """How to get more than Cursor's 200,000 tokens."""
    names = [name for name, target in models.items() if target == model and not name.endswith("*")]
    yield "The whole context of 1M tokens: Cursor gives a model that it does not know 200,000. Choose a name of its own"
    yield "for which it allows more, in Max Mode, and let the proxy answer for it."
    if names:
        yield f"[models] has {names[0]} for {model} already: add and choose that one in step 1."
        return
    yield f"Put this into {config_path}, restart the proxy, and add and choose {_LONG_NAME} in step 1:"
    yield ""
    yield "[models]"
    yield f'"{_LONG_NAME}" = "{model}"'
