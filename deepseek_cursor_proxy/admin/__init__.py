"""The admin listener: dashboard, metrics and health of a running proxy, on a port of their own.

    service         AdminService, which `cli` opens and closes, and context, what its endpoints look at
    listener        the socket, its accepting thread and its connections
    key_files       admin.key beside the store, and the file that tells `dashboard` where a proxy listens
    running         how commands ask a running proxy, after it has proven itself
    access          who may ask: key, Host and Origin
    app             the table of paths, and the headers of every reply
    static_files    the files of dashboard/
    metrics         Prometheus' text, in the format of prometheus
    json_api/       /api
    feed            /api/events: what happens, to every open dashboard
    statistics      what requests add up to
    health, process, store_state    whether the proxy is ready, what it uses, what it holds

`cli` imports `service`, `key_files` and `running`, `doctor` the last two; nothing else imports this folder. Code that
embeds a DeepSeekProxyServer gets no second port.
"""
