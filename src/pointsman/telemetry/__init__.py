"""What is counted, logged and remembered about requests and nodes.

Reading order: instruments (counters and histograms cheap enough for the request path), metrics
(every `pointsman_` metric of the requests), collector_metrics, tokenizer_metrics and reload_metrics
(those of other parts), cluster_metrics (the gauges, read from the scheduler when scraped),
access_log, reader (streams that must not be waited for), decisions.

One thread owns all of it. Imports core only; a shell hands it values.
"""
