"""Latency and accuracy of one architecture, without a search: `python evaluate.py small.json`."""

import sys

from edgeloop import Jobs, PartialTraining, RemoteBenchmark, Workspace

arch = sys.argv[1]  # a file; the JSON itself, as a text or a mapping, will do as well
with Workspace.open() as workspace:
    benchmark = RemoteBenchmark(workspace, timeout_s=600)
    training = PartialTraining(Jobs.open(), "working/faces", {"steps": 20}, compute="local")
    benchmark.send(arch)  # returns at once, so both are on their way
    training.send(arch)
    for evaluator in (benchmark, training):
        finished = []
        while not finished:
            finished = evaluator.collect(timeout_s=60)
        for evaluation in finished:
            print(evaluation.arch_id, evaluation.error or dict(evaluation.values))
        evaluator.close()
