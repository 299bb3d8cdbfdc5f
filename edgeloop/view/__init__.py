"""Results for people: the Pareto front of a table, charts, a report in one file, and the portal.

    rows = Workspace.open().status()
    front = pareto_of(rows, [objective("latency_ms"), objective("f1_1k")])
    write_chart(pareto_chart(rows), Path("front.png"), "Front")

The functions are in `front.py`, `measures.py`, `drawing.py` and `charts.py`. Charts need the extra
`portal`; the front does not.

May import every room except `cli`, `node`, `platforms` and `tuning`. Start reading in `measures.py`
(names, units and goals of columns) and `front.py`, then `report.py` or `portal/app.py`.
"""
