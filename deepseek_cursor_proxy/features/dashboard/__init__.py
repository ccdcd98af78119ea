"""The admin listener: dashboard, metrics and health of a running proxy, on a port of their own.

    service         AdminService, which `cli` opens and closes: the second socket and its connections; AdminContext:
                    what the endpoints look at
    app             the table of paths, who may ask (key, Host and Origin), the headers of every reply, dashboard/
    metrics         what requests add up to, in Prometheus' format
    stats           /readyz, /api/stats, /metrics, /api/config
    requests        requests in flight and those of this run
    command         opens the page
    page            the files for the browser

Code that embeds a DeepSeekProxyServer gets no second port.
"""

COMMANDS = ({"name": "dashboard", "help": "open the dashboard in a browser", "run": "features.dashboard.command:run"},)
