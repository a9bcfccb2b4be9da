"""Which node? One policy a file; `catalog` names them all, `base` is what they share.

A policy writes a score into each row, lower is better, and the choice among the best is the
same for all of them (`pick`): of those within the tie band, the node that was not
chosen for longest. `choose` changes nothing but the rows; what a policy remembers, it
remembers in `placed`. So a dry run is the very code that places.
"""
