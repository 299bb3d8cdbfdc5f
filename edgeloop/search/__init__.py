"""Architecture search: propose candidates, evaluate them, and end with a Pareto front.

    with Search.open("laptop.yaml") as search:
        result = search.run()

`Search` is in `campaign.py`. `RemoteBenchmark` and `PartialTraining` of `evaluators/` also work
without a search: `send` an architecture and `collect` evaluations.

May import `jobs`, `models`, `workspace`, `platforms`, `tasks` and `pareto`, and what is below them,
but not `runner`: a farm is reached through the status table. Start reading in `campaign.py`, then
`loop.py`, `sampler/` (what to try next), `evaluators/` (what it is worth) and `nets/` (networks).
"""
