"""What a client is pointed at: the address of the proxy, the variable that holds the key, and the models.

A client names a variable of the environment, so that no file holds a key. `key` is the key itself, for the one that
has no way to name a variable.
"""

from dataclasses import dataclass, replace

from deepseek_cursor_proxy.deepseek.model_names import MODELS

MODEL, SMALL_MODEL = MODELS
NAMES = {MODEL: "DeepSeek V4 Pro", SMALL_MODEL: "DeepSeek Flash"}
PROVIDER = "deepseek-proxy"

# DeepSeek's own figures.
CONTEXT_TOKENS = 1_048_576
OUTPUT_TOKENS = 393_216

DEEPSEEK_KEY_VARIABLE = "DEEPSEEK_API_KEY"
# Another one for access keys: on this machine, DEEPSEEK_API_KEY is the proxy's own then.
ACCESS_KEY_VARIABLE = "DEEPSEEK_PROXY_API_KEY"
# Stands for the key in what is shown.
HIDDEN_KEY = "sk-…"


@dataclass(frozen=True)
class Endpoint:
    """`root` is the address without /v1; `key_variable` holds the key that the proxy takes."""

    root: str
    key_variable: str = DEEPSEEK_KEY_VARIABLE
    key: str | None = None

    @property
    def base_url(self) -> str:
        return f"{self.root}/v1"

    @property
    def key_word(self) -> str:
        is_access_key = self.key_variable == ACCESS_KEY_VARIABLE
        return "an access key of the proxy" if is_access_key else "your DeepSeek key"

    def without_key(self) -> "Endpoint":
        """The same for a screen."""
        return replace(self, key=HIDDEN_KEY if self.key else None)
