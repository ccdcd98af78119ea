"""What the facts about an upstream mean: pure functions from what `upstreams` found to findings."""

from collections.abc import Iterator

from deepseek_cursor_proxy.access import HELD_KEY
from deepseek_cursor_proxy.cli.doctor.finding import Finding, failed, good, skipped, warning
from deepseek_cursor_proxy.cli.doctor.upstreams import KeyAnswer, Upstream, UpstreamFacts

UPSTREAM, CLOCK, KEY, BALANCE, MODELS = "upstream", "clock", "key", "balance", "models"
# A Date header has whole seconds and was on its way. Prices change by the hour, certificates by the day.
_CLOCK_WARNING_SECONDS = 60.0
_CLOCK_FAILED_SECONDS = 600.0
_MOST_NAMES = 4
_KEYS_PAGE = "https://platform.deepseek.com/api_keys"
_TOP_UP_PAGE = "https://platform.deepseek.com/top_up"


def judge(upstream: Upstream, facts: UpstreamFacts) -> list[Finding]:
    """The findings in the order of the way."""
    return [
        _judge_way(upstream, facts),
        *_judge_clock(upstream, facts),
        *_judge_keys(upstream, facts),
        *_judge_account(upstream, facts),
        *_judge_models(upstream, facts),
    ]


def _name(word: str, upstream: Upstream) -> str:
    return f"{word} {upstream.label}".rstrip()


def _judge_way(upstream: Upstream, facts: UpstreamFacts) -> Finding:
    name, origin = _name(UPSTREAM, upstream), upstream.origin
    if facts.failure is not None:
        return failed(name, f"{facts.failure.step}: {facts.failure.problem}", facts.failure.remedy)
    steps = "name, connection and TLS" if origin.scheme == "https" else "name and connection, without TLS"
    via = f", by the proxy {facts.via} (HTTPS_PROXY)" if facts.via else ""
    return good(name, f"{origin.host} reached: {steps} in {facts.seconds:.2f} s{via}")


def _judge_clock(upstream: Upstream, facts: UpstreamFacts) -> Iterator[Finding]:
    if facts.clock_seconds is None:
        why = f"{upstream.origin.host} sends no date" if facts.failure is None else "there is no other clock to compare"
        yield skipped(_name(CLOCK, upstream), why)
        return
    off = abs(facts.clock_seconds)
    word = "behind" if facts.clock_seconds > 0 else "ahead of"
    text = f"this machine is {_duration(off)} {word} {upstream.origin.host}"
    remedy = "set the clock and the time zone, and have the system keep it right (NTP)"
    if off >= _CLOCK_FAILED_SECONDS:
        yield failed(_name(CLOCK, upstream), text, remedy)
    elif off >= _CLOCK_WARNING_SECONDS:
        yield warning(_name(CLOCK, upstream), text, remedy)
    else:
        yield good(_name(CLOCK, upstream), f"as that of {upstream.origin.host}, to a few seconds")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _judge_keys(upstream: Upstream, facts: UpstreamFacts) -> Iterator[Finding]:
    name = _name(KEY, upstream)
    for variable in upstream.empty_variables:
        yield failed(
            name, f"{variable} holds no key, or one of Anthropic", f"set {variable} where the proxy is started"
        )
    if upstream.why_no_key:
        remedy = "set DEEPSEEK_API_KEY, or type it when asked, to have key, balance and models checked"
        yield skipped(name, upstream.why_no_key, remedy)
    if facts.failure is None:
        yield from (_judge_key(name, each) for each in facts.keys)
    elif upstream.keys:
        yield skipped(name, "not checked, because the upstream does not answer")


def _judge_key(name: str, answer: KeyAnswer) -> Finding:
    key = f"the key in {answer.variable}" if answer.variable else "the key"
    match answer.status:
        case 401 | 403:
            is_deepseeks = answer.variable in ("", HELD_KEY)
            remedy = f"make a new one at {_KEYS_PAGE}" if is_deepseeks else f"set {answer.variable} anew"
            return failed(name, f"{key} is not accepted ({answer.status})", remedy)
        case 402:
            return failed(name, "the account has no balance (402)", f"top up at {_TOP_UP_PAGE}")
        case 200:
            return good(name, f"{key} is accepted")
        case 404 | 405:
            return skipped(name, f"{key} cannot be checked: this upstream lists no models")
        case 429:
            return warning(name, f"{key} is asked to wait (429)", "try again in a minute")
        case status:
            return warning(name, f"the upstream answers {status} when asked for its models", "try again in a moment")


def _judge_account(upstream: Upstream, facts: UpstreamFacts) -> Iterator[Finding]:
    if facts.account is None:
        return
    amounts = ", ".join(f"{each.total} {each.currency}" for each in facts.account.balances)
    if facts.account.is_available:
        yield good(_name(BALANCE, upstream), f"the account can be used ({amounts or 'no amounts'})")
    else:
        text = f"the account cannot be used ({amounts or 'no amounts'})"
        yield failed(_name(BALANCE, upstream), text, f"top up at {_TOP_UP_PAGE}")


def _judge_models(upstream: Upstream, facts: UpstreamFacts) -> Iterator[Finding]:
    listed = next((each.models for each in facts.keys if each.models), None)
    if listed is None:
        return
    lower = {each.lower() for each in listed}
    missing = [each for each in upstream.models if each.lower() not in lower]
    if missing:
        text = f"{', '.join(missing[:_MOST_NAMES])} not among those that it lists: {_few(listed)}"
        where = f"models of [upstreams.{upstream.label}]" if upstream.label else "model and [models]"
        yield warning(_name(MODELS, upstream), text, f"correct {where}, unless the upstream serves more than it lists")
    else:
        yield good(_name(MODELS, upstream), f"{', '.join(upstream.models[:_MOST_NAMES]) or 'any'}: listed")


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")
