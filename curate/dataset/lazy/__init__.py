"""Lazy datasets: frozen logical operators, pure rewrites of them, and one generator from a source to its last operator.

operators   what happens to rows; each knows its schema, its identity and how it is applied to a batch
sources     where rows come from, in pieces
plan        the tree of both
rules       rewrites: what is read less of, and what is fused
fused       operators run one after another over a batch: the operator of a stage
execution   a rewritten plan as a stream of blocks
sinks       a plan as a stage over files: a run like any job's
stats       what a run of it took, and what limits it; shown on a terminal by `shown`
base        what a Dataset is: a plan, and how it runs; then its parts: functions, rowwise, exchanges, all_rows,
            consuming_api, writing
api         Dataset, which is all of them
"""
