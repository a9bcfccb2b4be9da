"""What is counted, logged and remembered about requests and nodes.

Reading order: record (what a finished request tells), instruments (counters and histograms
cheap enough for the request path), metrics (every `pointsman_` metric of the requests),
cluster_metrics (the gauges, read from the scheduler when scraped), reader (who must not be
waited for), access_log, decisions.

One thread owns all of it. Imports core and ports; never a shell, which hands it values.
"""
