"""Figures of a run's JSON: all repeats of all passes of a row together, its reason where it has none."""

import statistics
from typing import NamedTuple


class Figure(NamedTuple):
    median: float
    low: float
    high: float
    count: int


def figure(values):
    values = [v for v in values if v is not None]
    return Figure(statistics.median(values), min(values), max(values), len(values)) if values else None


class Results:
    def __init__(self, document):
        self.document, self.rows = document, document["rows"]

    def passes(self, row):
        return [p for p in self.rows.get(row, {"passes": []})["passes"] if "error" not in p]

    def reasons(self, row):
        return [p["error"] for p in self.rows.get(row, {"passes": []})["passes"] if "error" in p]

    def command(self, row):
        return self.rows.get(row, {}).get("command")

    def figures(self, row, *keys):
        """A list of figures under keys, of all passes."""
        out = []
        for said in self.passes(row):
            for key in keys:
                said = said.get(key, {}) if isinstance(said, dict) else {}
            out += said if isinstance(said, list) else []
        return figure(out)

    def bench(self, row, name, what="value"):
        """A row of `refit bench`, one figure a pass, each its median of the repeats. what: value, ceiling or ratio."""
        return figure([r[what] for said in self.passes(row) for r in said["rows"] if r["name"] == name])
