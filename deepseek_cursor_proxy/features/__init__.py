"""What the proxy can do beyond chat completions: each folder whole, with its table, endpoints, observer and command.

Nothing but `proxy.py` and `cli/` imports a feature. A feature imports the core, and another feature only where the
table in `tests/test_architecture.py` says so.

    responses       OpenAI's Responses API (Codex), with stored and background responses
    messages        Anthropic's Messages API (Claude Code)
    web_search      DeepSeek's own web search, by the APIs of DeepSeek that have it
    written_calls   calls that a model wrote as text become calls
    choices         several answers to one request (n > 1)
    passthrough     models whose requests go elsewhere unchanged
    sessions        recorded trajectories: their file, rendering, token masks, export
    response_cache  repeated questions answered without a call
    request_log     the requests in flight and the last that ended; other features need it
    usage           the ledger of requests and costs, its sums, the balance of the account
    keys            named keys, their limits and groups
    tokens          counting the tokens of a prompt; other features need it
    redis           what several proxies share on Redis or Valkey
    dashboard       a second listener for the owner: the page, metrics, health
    traces          a file per request, and what explains it

`encryption` is a file for several of them: reasoning that clients and Redis keep for us, sealed.

In a folder, `feature` has the Feature that `proxy.py` opens (messages and dashboard need none), `store` a table of the
store's file, `redis_store` the same on Redis, `command` a command and `dashboard` the JSON for the dashboard.
`__init__` has what `proxy.py` collects, by name:

    ROUTES, PREFIXES, REFUSALS    paths of the API, what may stand before any of them, errors in another shape
    ADMIN_ROUTES                  paths of the admin listener
    STORED                        what it has in the store, see `Stored` of `exchange/feature.py`
    CLEARED                       its tables that `store clear` empties
    COMMANDS                      the fields of a Command, see `cli/parser.py`
    START_CHECKS                  a setting, and what refuses a value with which the proxy cannot start
    DOCTOR_CHECKS                 a setting, and the check of `doctor` where it is set, with its name
"""
