"""Refit's plan of the same worlds through the Python package: planner_refit.py --model NAME --repeats K. All ranks' pieces and the proof that
they cover everything, layouts made outside the clock. Prints one JSON object."""

import argparse
import json
import time

import refit

WORLDS = {
    "qwen3-30b-a3b": ("megatron:pp=16,ep=16", "vllm:tp=32,dp=8"),
    "deepseek-v3": ("megatron:pp=16,ep=16,first=4,last=1", "vllm:tp=32,dp=8,draft=skip"),
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=WORLDS, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    o = parser.parse_args()
    seconds = []
    for _ in range(o.repeats):
        source, target = (refit.Layout.from_model(o.model, spec) for spec in WORLDS[o.model])  # anew: they remember what they made
        start = time.monotonic()
        plan = refit.Plan(source, target, list_unwanted=True)  # the engine leaves draft layers out
        seconds.append(time.monotonic() - start)
    print(json.dumps({"seconds": seconds, "segments": plan.segments, "coverage": plan.coverage, "from": WORLDS[o.model][0], "to": WORLDS[o.model][1]}))
