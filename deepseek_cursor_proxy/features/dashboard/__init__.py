"""The admin listener: dashboard, metrics and health of a running proxy, on a port of their own.

    service         AdminService, which `cli` opens and closes: the second socket and its connections
    context         AdminContext: what the endpoints look at
    running         admin.key and the address beside the store; how commands ask a proxy, after it has proven itself
    app             the table of paths, who may ask (key, Host and Origin), the headers of every reply, dashboard/
    metrics         what requests add up to, in Prometheus' format
    stats           /readyz, /api/stats, /metrics, /api/config
    requests        requests in flight and those of this run
    command         opens the page, and finds the running proxy for other commands
    page            the files for the browser

Code that embeds a DeepSeekProxyServer gets no second port.
"""
