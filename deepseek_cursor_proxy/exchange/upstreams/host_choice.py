"""HostChoice: the API to call an upstream with, as its host has it.

For a host that is not known by name (`hosts.choose`) the answers decide: the form in which reasoning came is learned by
base URL, kept in the store, and the next requests send reasoning back in it. A form of fields is never unlearned in
favour of <think> in the text, because a model may write that tag about anything. A host that has sent no reasoning is
learned as such until it sends some: what it leaves out is not known to be empty. Which models refuse tools that
DeepSeek runs itself is known until the proxy is started or configured anew.
"""

from collections.abc import Mapping
from dataclasses import replace

from deepseek_cursor_proxy.conversation import ChatRequest, Reply
from deepseek_cursor_proxy.deepseek.apis.api import UpstreamApi, chat_of
from deepseek_cursor_proxy.deepseek.hosts import Form, Host
from deepseek_cursor_proxy.deepseek.hosts.think_tags import begins_with_block
from deepseek_cursor_proxy.storage.reasoning_forms import ReasoningForms


class HostChoice:
    """The API of one upstream. Called by handler threads; nothing in it changes but what is learned."""

    def __init__(self, host: Host, base_url: str, forms: ReasoningForms) -> None:
        self._base_url = base_url
        self._forms = forms
        self._host = host
        self._default = chat_of(host)
        self._apis: Mapping[str | None, UpstreamApi] = {form.value: chat_of(_with_form(host, form)) for form in Form}
        # Paths and models that refused tools that DeepSeek runs itself. A set's own operations are atomic.
        self._refused: set[tuple[str, str]] = set()

    def chat_api(self) -> UpstreamApi:
        """The chat completions API of the upstream, in the form that its answers have shown."""
        known = self._forms.get(self._base_url) if self._host.is_learning else None
        return self._apis.get(known, self._default)

    @property
    def is_learning(self) -> bool:
        """Whether the upstream is of unknown kind."""
        return self._host.is_learning

    def runs_server_tools(self, wanted: UpstreamApi, request: ChatRequest) -> bool:
        """Whether to send a request with the tools that DeepSeek runs itself.

        DeepSeek gets them, and an upstream of unknown kind until it refuses them; no other host does.
        """
        return self.chat_api().host.runs_server_tools and (wanted.path, request.model) not in self._refused

    def record_refused_tools(self, refused: UpstreamApi, model: str) -> None:
        """Send no more of these tools to a model at this path, until the proxy is started again."""
        self._refused.add((refused.path, model))

    def learn(self, reply: Reply, *, has_thinking: bool = True) -> None:
        """Learn the form of the reasoning in an answer with thinking or without; no effect if the host is known."""
        if not self._host.is_learning:
            return
        known = self._forms.get(self._base_url)
        # Most answers teach nothing: they are as the last one was.
        if (reply.is_foreign or known != _CONTENT) and (form := self._form_of(reply, known)) is not None:
            self._forms.learn(self._base_url, form.value)
        elif known is None and has_thinking and not (reply.message().reasoning or reply.has_empty_reasoning(0)):
            self._forms.learn(self._base_url, _NONE)

    def _form_of(self, reply: Reply, known: str | None) -> Form | None:
        if Form.DETAILS.value in reply.foreign_names:
            return Form.DETAILS
        if reply.foreign_names and not reply.has_mixed_names:
            return Form.REASONING
        message = reply.message()
        if message.reasoning:
            # In THINK it came from the content.
            return None if known == Form.THINK.value else Form.CONTENT
        if known in (None, _NONE) and isinstance(message.content, str) and begins_with_block(message.content):
            return Form.THINK
        return None


_CONTENT, _NONE = Form.CONTENT.value, Form.NONE.value


def _with_form(host: Host, form: Form) -> Host:
    """The host with a form; only DeepSeek's own makes an upstream of unknown kind as strict and able as DeepSeek.

    One that has shown no reasoning gets no fillers; one that has shown it in the field of DeepSeek and sends none has
    none.
    """
    if form is Form.NONE:
        return replace(host, requires_reasoning=False)
    if form is host.form:
        return replace(host, is_silence_empty=True)
    return replace(host, form=form, requires_reasoning=False, runs_server_tools=False)
