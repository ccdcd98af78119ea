"""The engine that several proxies share: whether it answers, is new enough and has the same secret. Writes nothing."""

import contextlib

from deepseek_cursor_proxy.cli.doctor.subject import Finding, Subject, failed, good, warning
from deepseek_cursor_proxy.config.declaration import SECRET_VARIABLE
from deepseek_cursor_proxy.config.values import expand_home
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.storage.private_files import given_secret, read_secret

_ENGINE = "engine"
_OLDEST = (6, 2)
# Others drop keys that chats still need, or that count budgets.
_POLICIES = ("noeviction", "volatile-lru", "volatile-lfu", "volatile-ttl", "volatile-random")


def check(subject: Subject) -> list[Finding]:
    # Imported late: most proxies have no engine.
    from deepseek_cursor_proxy.features.redis.client import RedisClient
    from deepseek_cursor_proxy.features.redis.connection import RedisAddress, RedisUnavailable
    from deepseek_cursor_proxy.features.redis.state import is_shared_with, read_info, version_of

    config = subject.config
    assert config.store is not None
    try:
        address = RedisAddress.parse(config.store)
        given = given_secret(subject.environment)
        secret = given or read_secret(expand_home(config.reasoning_content_path))
    except StartupError as error:
        return [failed(_ENGINE, str(error), f"correct `store` or {SECRET_VARIABLE}")]
    with contextlib.closing(RedisClient(address)) as engine:
        try:
            info = read_info(engine)
            is_ours = secret is None or is_shared_with(engine, secret, may_write=False)
        except RedisUnavailable as error:
            return [failed(_ENGINE, f"it does not answer: {error}", "start it, or correct `store`")]
    version, policy = info.get("redis_version", "?"), info.get("maxmemory_policy", "")
    if version_of(info) < _OLDEST:
        return [failed(_ENGINE, f"{address} is version {version}", "6.2 is the oldest that works")]
    if not is_ours:
        remedy = f"give every proxy the same {SECRET_VARIABLE}; `store secret` prints that of one"
        return [failed(_ENGINE, f"{address} is used with another installation secret", remedy)]
    if given is None:
        remedy = f"set {SECRET_VARIABLE}, so that other proxies can have the same secret"
        return [warning(_ENGINE, f"{address} answers, with a secret that only this proxy has", remedy)]
    if policy and policy not in _POLICIES:
        return [warning(_ENGINE, f"{address} drops keys in use ({policy})", "set maxmemory-policy to noeviction")]
    return [good(_ENGINE, f"{address} answers, version {version}")]
