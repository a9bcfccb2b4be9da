"""The bounds that health is judged by, each with its reason; those that may be configured are
defaults of `HealthRules`."""

POISON_PROMPTS_MAX = 256
POISON_S = 60.0
"""Prompts that failed, remembered for a minute to tell whether they or the nodes are broken: a
client's SDK sends one again within seconds."""

OPEN_S = 5.0
OPEN_S_MAX = 60.0
"""A node that failed stays out for this long, twice as long each time it fails again, up to a
minute: each return of a broken node costs a request a second attempt."""

HALF_OPEN_CHOOSY_S = 1.0
"""A node on trial waits for a request of low priority for this long; then any will do. Where
nobody sends such requests it must come back all the same."""

HALF_OPEN_TRIALS_MAX = 1
"""Requests on trial at a time: what a broken node may cost at once."""

SUSPECT_S = 10.0
"""A suspicion that nothing confirms fades: a few long prefills."""

SUSPECT_WEIGHT = 0.25
SUSPECT_WEIGHT_MIN = 0.05
PROBES_WEIGHT = 0.5
"""A suspect's share of its peers' work: enough to keep the sessions of a node that is well, and
little to lose on one that is not. Probes alone say less: a busy engine is slow to answer them."""

PEERS_MIN = 8.0
"""Requests in flight that the peers of a node of lowered weight are taken to have at least: where
there is hardly any load there is little to share, and a session is to find its node."""

SHARED_QUEUE_S = 0.1
"""Prefills that may wait on a node of lowered weight beside peers that have none waiting, before it
is sent no more: a prompt of 2,000 tokens, or several that are cached there. It idles and its cache
is cold: it would be sent all that is new at once, and each would wait for those before it."""

TRIAL_AFTER_S = 5.0
TRIAL_AFTER_FACTOR_MAX = 16.0
"""The first trial of a slow node that idles is soon against an outage. Each one that finds it as
slow as believed doubles the time to the next, up to 80 s, so that a node that stays slow costs one
slow answer in that."""

TRIAL_COST_SHARE = 0.1
"""Of the time without news of it, that a trial's first token may take if the node is as slow as
believed: short prompts and cached ones try it soon, a long one only when nobody else has come."""

SLOW_FACTOR = 3.0
SLOW_SAMPLES = 7
SLOW_SLACK_S = 0.05
"""A node is slow when the median of its last answers took three times as long as foreseen, 50 ms
allowed to each: predictions of first tokens are off by half under load, and one long answer is not
the median of seven."""

SLOW_SHARE_MAX = 0.5
"""At most half of a model's nodes are found slow, late or stuck: if more are, it is the load, the
network or the prediction, and to take nodes out would finish the rest."""

OVERDUE_FACTOR = 5.0
OVERDUE_MIN_S = 3.0
"""A first token is overdue after five times the time foreseen and three seconds, with nothing come
from its node since it was placed. After twice that the node is out."""

QUEUE_GROWTHS_MAX = 3
QUEUE_LATE_S = 1.0
"""Reports in a row in which a node's own queue has grown while nothing came from it, and the
prefill whose turn it is should have been over for so long: sooner than a first token is overdue."""

SLOW_START_S = 30.0
"""A new node has its full share of work after this long at most, where others serve already."""

WARMING_SPEED_MAX = 3
"""How many times as fast it gets there when its first tokens come as foreseen: in 10 s. One that
only comes back has its cache, and is given a third of the time."""

WARMING_SAMPLES = 20
"""First tokens, within what was foreseen, that make it warm."""

WARMING_WEIGHT_NEW = 0.1
WARMING_WEIGHT_RETURNED = 0.5
"""The share of its peers' work that it begins with: cold caches are what hurts."""
