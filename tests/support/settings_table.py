"""The table of settings in .github/docs/settings.md; `python -m tests.support.settings_table` prints it."""

from itertools import groupby

from deepseek_cursor_proxy.config.declaration import Setting, SettingsTable, to_toml
from deepseek_cursor_proxy.config.loaded_config import DECLARATIONS


def settings_table() -> str:
    rows = ["| flag and key | default | meaning |", "|---|---|---|"]
    for name, settings in groupby(
        DECLARATIONS, lambda declared: "" if isinstance(declared, SettingsTable) else declared.group
    ):
        rows += [f"| **{name or 'tables of the file'}** | | |", *map(_row, settings)]
    return "\n".join(rows)


def _row(declared: Setting | SettingsTable) -> str:
    if isinstance(declared, SettingsTable):
        return f"| `[{declared.key}]` | `{{}}` | {declared.help} |"
    choices = f" ({', '.join(f'`{choice}`' for choice in declared.choices)})" if declared.choices else ""
    flag = declared.flag.replace("--", "--[no-]") if declared.switch or declared.kind is bool else declared.flag
    restart = "; needs a restart" if declared.needs_restart else ""
    text = declared.help.replace("<", "&lt;")
    return f"| `{flag}` · `{declared.key}` | `{to_toml(declared.default)}` | {text}{choices}{restart} |"


if __name__ == "__main__":
    print(settings_table())
