"""Rows of figures: every run is kept, the median is what counts, and a comparison that Reef loses says so."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

SUBJECT = "Reef"


@dataclass
class Row:
    """One thing that was measured on several servers, alternating."""

    name: str
    unit: str
    higher_is_better: bool
    runs: dict[str, list[float]] = field(default_factory=dict)
    # Servers that are no peers, such as the mock upstream alone: shown, not compared.
    bounds: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def add(self, server: str, value: float) -> None:
        self.runs.setdefault(server, []).append(value)

    def median(self, server: str) -> float | None:
        values = self.runs.get(server)
        return statistics.median(values) if values else None

    def ratio(self, peer: str) -> float | None:
        """How many times better Reef is than the peer; under 1 it is worse."""
        ours, theirs = self.median(SUBJECT), self.median(peer)
        if ours is None or theirs is None or ours <= 0 or theirs <= 0:
            return None
        return ours / theirs if self.higher_is_better else theirs / ours

    def verdict(self, peer: str) -> str:
        ratio = self.ratio(peer)
        if ratio is not None:
            return f"{ratio:.2f}× {'won' if ratio >= 1 else 'lost'}"
        ours, theirs = self.median(SUBJECT), self.median(peer)
        if ours is None or theirs is None:
            return "not measured"
        better = ours >= theirs if self.higher_is_better else ours <= theirs
        return f"no ratio, {'won' if better else 'lost'}"

    def peers(self) -> list[str]:
        return [server for server in self.runs if server != SUBJECT and server not in self.bounds]

    def as_json(self) -> dict[str, object]:
        return {
            "row": self.name,
            "unit": self.unit,
            "higher_is_better": self.higher_is_better,
            "runs": self.runs,
            "medians": {server: self.median(server) for server in self.runs},
            "ratios": {peer: self.ratio(peer) for peer in self.peers()},
            "notes": self.notes,
        }


def shown(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def with_range(row: Row, server: str) -> str:
    values = row.runs.get(server, [])
    if len(values) < 2:
        return shown(row.median(server))
    return f"{shown(row.median(server))} ({shown(min(values))} to {shown(max(values))})"


def table(rows: list[Row]) -> str:
    """One Markdown table: a column for each server, one for each comparison."""
    servers = list(dict.fromkeys(server for row in rows for server in row.runs))
    servers.sort(key=lambda server: server != SUBJECT)
    peers = list(dict.fromkeys(peer for row in rows for peer in row.peers()))
    head = ["", "unit", *servers, *(f"{SUBJECT} against {peer}" for peer in peers)]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [with_range(row, server) for server in servers]
        verdicts = [row.verdict(peer) if peer in row.runs else "–" for peer in peers]
        lines.append("| " + " | ".join([row.name, row.unit, *cells, *verdicts]) + " |")
    notes = list(dict.fromkeys(note for row in rows for note in row.notes))
    return "\n".join([*lines, "", *(f"- {note}" for note in notes), ""])
