"""The admin listener: dashboard, metrics and health of a running proxy, on a port of their own.

    service         AdminService, which `cli` opens and closes: the second socket and its connections
    context         AdminContext: what the endpoints look at
    key_files       admin.key beside the store, and the file that tells `dashboard` where a proxy listens
    running         how commands ask a running proxy, after it has proven itself
    app             the table of paths, who may ask (key, Host and Origin), the headers of every reply, dashboard/
    metrics         Prometheus' text, in the format of prometheus
    requests, stats, usage, keys, sessions    the JSON of /api; .github/docs/observing.md has the shapes
    statistics      what requests add up to
    state           whether the proxy is ready, what it uses, what it holds

`cli` imports `service`, `key_files` and `running`, `doctor` the last two; nothing else imports this folder. Code that
embeds a DeepSeekProxyServer gets no second port.
"""
