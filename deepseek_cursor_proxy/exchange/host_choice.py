"""HostChoice: the API to call an upstream with, as its host has it.

For a host that is not known by name (`hosts.choose`) the answers decide: the form in which reasoning came is learned by
base URL, and the next requests send reasoning back in it. How sure an answer is:

    a field                        used at once in place of anything but another field that is confirmed
    no reasoning at all            used at once if nothing is known; an omitted field need not mean no reasoning
    <think> at the beginning       used when a second answer in a row has it: a model may write that tag about anything;
                                   at once if the settings name the host `plain`, which has no other way

Any form is kept in the store when a second answer in a row shows it. Neither silence nor <think> replaces a field. A
refusal for missing `reasoning_content` means DeepSeek's own form, if the request is answered in it: the words of a
refusal may be the client's.

An upstream's refusal of tools that DeepSeek runs itself is remembered for some minutes, for the caller and the tools
that it was about: one caller's settings say nothing about another's.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from deepseek_cursor_proxy.conversation import ChatRequest, Reply
from deepseek_cursor_proxy.deepseek.apis.api import UpstreamApi, chat_of
from deepseek_cursor_proxy.deepseek.apis.chat_stream import begins_with_block
from deepseek_cursor_proxy.deepseek.hosts import DEEPSEEK, Host, ReasoningForm
from deepseek_cursor_proxy.storage.learned import ReasoningForms

# Long enough that no chat pays for the refusal with every request, short enough for a tool that is added today.
_REFUSED_SECONDS = 600.0
_MOST_REFUSALS = 256


class HostChoice:
    """The API of one upstream. Called by workers; only what it learns changes."""

    def __init__(
        self, host: Host, base_url: str, forms: ReasoningForms, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._base_url = base_url
        self._forms = forms
        self._host = host
        self._default = chat_of(host)
        self._apis: Mapping[str | None, UpstreamApi] = {
            form.value: chat_of(_with_form(host, form)) for form in ReasoningForm
        }
        self._now = now
        # Refused tools that DeepSeek runs itself, and until when. A dict's own operations are atomic.
        self._refused: dict[_Refusal, float] = {}
        self._has_sent_calls = False

    def chat_api(self) -> UpstreamApi:
        """The chat completions API of the upstream, in the form that its answers have shown."""
        known = self._forms.get(self._base_url) if self._host.is_learning else None
        return self._apis.get(known, self._default)

    @property
    def strict_chat_api(self) -> UpstreamApi:
        """The same in DeepSeek's own form, if the host is not known to have another."""
        return self._apis[ReasoningForm.CONTENT.value] if self._host.is_learning else self._default

    @property
    def is_learning(self) -> bool:
        """Whether the upstream is of unknown kind."""
        return self._host.is_learning

    @property
    def may_write_calls(self) -> bool:
        """Whether its answers may have calls in the model's own markup: not DeepSeek, and no structured call so far."""
        return not self._has_sent_calls and self._host.name != DEEPSEEK.name

    def record_structured_call(self) -> None:
        """Record that the upstream sent a structured call: it parses its model's markup."""
        self._has_sent_calls = True

    def runs_server_tools(self, wanted: UpstreamApi, request: ChatRequest, caller: bytes) -> bool:
        """Whether to send a request with the tools that DeepSeek runs itself.

        DeepSeek gets them, and an upstream of unknown kind; no other host does. Nor does a model get again what it
        refused to this caller.
        """
        if not self.chat_api().host.runs_server_tools:
            return False
        return not self._refused or self._refused.get(_refusal(wanted, request, caller), 0.0) <= self._now()

    def record_refused_tools(self, refused: UpstreamApi, request: ChatRequest, caller: bytes) -> None:
        """Send no more of these tools to this model at this path for this caller, for some minutes."""
        if len(self._refused) >= _MOST_REFUSALS:
            self._refused.clear()
        self._refused[_refusal(refused, request, caller)] = self._now() + _REFUSED_SECONDS

    def learn(self, reply: Reply, *, has_thinking: bool = True, was_transcript: bool = False) -> None:
        """Learn the form of the reasoning in an answer with thinking or without; no effect if the host is known.

        An answer to a transcript means that the upstream insists on `reasoning_content`, DeepSeek's own form.
        """
        if not self._host.is_learning:
            return
        if was_transcript and not self.chat_api().host.requires_reasoning:
            self._learn(ReasoningForm.CONTENT, is_sure=True)
        known, is_confirmed = self._forms.get(self._base_url), self._forms.is_confirmed(self._base_url)
        # Most answers teach nothing: they are as the last one was.
        if known == ReasoningForm.CONTENT.value and is_confirmed and not reply.foreign_names:
            return
        if (form := _form_of(reply, has_thinking)) in _FIELDS:
            self._learn(form, is_sure=known not in _FIELD_NAMES or not is_confirmed)
        elif form is not None and known not in _FIELD_NAMES:
            is_first_silence = form is ReasoningForm.NONE and known is None
            self._learn(form, is_sure=is_first_silence or not self._host.requires_reasoning)

    def _learn(self, form: ReasoningForm, *, is_sure: bool) -> None:
        self._forms.learn(self._base_url, form.value, is_sure=is_sure)


# The forms that are fields of an answer: what an upstream says, and no text of a model.
_FIELDS = (ReasoningForm.CONTENT, ReasoningForm.REASONING, ReasoningForm.DETAILS)
_FIELD_NAMES = tuple(form.value for form in _FIELDS)


def _form_of(reply: Reply, has_thinking: bool) -> ReasoningForm | None:
    """The form of the reasoning in an answer; None if it is no evidence of any."""
    names, message = reply.foreign_names, reply.message()
    if ReasoningForm.DETAILS.value in names:
        return ReasoningForm.DETAILS
    if names and not reply.has_mixed_names:
        return ReasoningForm.THINK if names == (ReasoningForm.THINK.value,) else ReasoningForm.REASONING
    if message.reasoning:
        return ReasoningForm.CONTENT
    if not has_thinking or reply.has_empty_reasoning():
        return None
    is_text = isinstance(message.content, str)
    return ReasoningForm.THINK if is_text and begins_with_block(str(message.content)) else ReasoningForm.NONE


# Path, model, caller and tools of a request that was refused.
_Refusal = tuple[str, str, bytes, str]


def _refusal(api: UpstreamApi, request: ChatRequest, caller: bytes) -> _Refusal:
    return api.path, request.model, caller, json.dumps(request.server_tools, sort_keys=True)


def _with_form(host: Host, form: ReasoningForm) -> Host:
    """The host with a form; only DeepSeek's own makes an upstream of unknown kind as strict and able as DeepSeek.

    An upstream that has never sent reasoning gets no fillers. If it has sent `reasoning_content` before, its absence
    means no reasoning.
    """
    if form is ReasoningForm.NONE:
        return replace(host, requires_reasoning=False)
    if form is host.form:
        return replace(host, absence_means_none=True)
    return replace(host, form=form, requires_reasoning=False, runs_server_tools=False)
