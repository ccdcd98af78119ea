"""The catalogue of DeepSeek's models for Codex: what it otherwise guesses for a model that it does not know.

Without one, Codex 0.166 warns that it uses fallback metadata, compacts early and offers no tool for patches. The fields
are those that `codex debug models` prints and asks for when one is missing. It wants instructions as well, which are in
our own words. Releases before 0.166 ask for the two `supports_` fields.
"""

import json
from collections.abc import Iterable
from typing import Any

from deepseek_cursor_proxy.deepseek.model_names import CONTEXT_TOKENS, DISPLAY_NAMES, MODELS, can_see_images

_PRO, _FLASH = MODELS
_DESCRIPTIONS = {_PRO: "DeepSeek's strongest model.", _FLASH: "DeepSeek's fast and cheap model; it sees pictures."}
_EFFORTS = {"low": "Short thinking", "high": "Thinking for most work", "max": "Long thinking for hard problems"}
# Codex's own figure for its models.
_OUTPUT_TOKENS_OF_A_TOOL = 10_000

_INSTRUCTIONS = """\
You are a coding agent in Codex CLI, on the user's machine. You and the user work in the same folder. Be precise, safe \
and helpful, and stay with the task until it is solved.

# How you work
- Look before you change anything: read the files that matter, and search with `rg` or `rg --files` where it is there. \
Run several reads at once when they do not depend on each other.
- Find the cause of a problem rather than hiding its symptom. Keep changes small and in the style of the code around \
them. Do not fix what is not asked for; mention it instead.
- Change files with the apply_patch tool where it is offered, not with scripts that print whole files. Paths in a \
patch are relative.
- Check what you did: run the tests, the build or the program if there is a way, the narrowest check first.
- AGENTS.md files tell you how their folder is worked in. The one nearest to a file counts most, and what the user \
says counts more than all of them.

# What you never do unasked
- Undo or overwrite changes that you did not make. The folder may hold work of the user; leave it, and stop and ask if \
it is in your way.
- Run commands that destroy work, such as `git reset --hard` or `git checkout --`; commit, push or make branches.

# Tools
- A sandbox may refuse a command. Ask for the permission that it needs, with a short reason, rather than work around it.
- If there is a tool for plans, use it for work of several steps: one step in progress at a time, and the plan kept up \
to date. Simple work needs none.
- Before a group of commands, say in one short sentence what comes next.

# Your answers
- Be brief and plain, like a colleague. Say what you did and why, name files with their line as in `src/app.py:42`, \
and do not repeat whole files: the user has them.
- If asked for a review, begin with the problems, the worst first, each with its place.
- Say honestly what you could not do or check, and offer the next step if there is an obvious one.
"""


def text(models: Iterable[str]) -> str:
    entries = [_catalogue_model(number, slug) for number, slug in enumerate(models)]
    return json.dumps({"models": entries}, indent=2, ensure_ascii=False) + "\n"


def _catalogue_model(number: int, slug: str) -> dict[str, Any]:
    return {
        "slug": slug,
        "display_name": DISPLAY_NAMES[slug],
        "description": _DESCRIPTIONS[slug],
        "default_reasoning_level": "high",
        "supported_reasoning_levels": [{"effort": name, "description": text} for name, text in _EFFORTS.items()],
        "shell_type": "unified_exec",
        "visibility": "list",
        "supported_in_api": True,
        "priority": number,
        "default_reasoning_summary": "auto",
        "supports_reasoning_summaries": True,
        "support_verbosity": False,
        "apply_patch_tool_type": "freeform",
        "web_search_tool_type": "text",
        "truncation_policy": {"mode": "tokens", "limit": _OUTPUT_TOKENS_OF_A_TOOL},
        "supports_parallel_tool_calls": True,
        "context_window": CONTEXT_TOKENS,
        "max_context_window": CONTEXT_TOKENS,
        "experimental_supported_tools": [],
        "input_modalities": ["text", "image"] if can_see_images(slug) else ["text"],
        "base_instructions": _INSTRUCTIONS,
    }
