"""Rows of figures: every run is kept, the median is what counts, and a comparison that Reef loses says so."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

SUBJECT = "Reef"

# How many times better than a peer Reef is asked to be, by the start of a row's name; 1 where nothing is said.
ASKED: dict[str, dict[str, float]] = {
    "decode": {"transformers": 3.0},
    "prefill": {"transformers": 3.0},
    "gateway, 64 connections": {"Python Reef": 100.0},
}


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

    def asked(self, peer: str) -> float:
        """The ratio from which on the comparison is won."""
        return next((wanted.get(peer, 1.0) for start, wanted in ASKED.items() if self.name.startswith(start)), 1.0)

    def verdict(self, peer: str) -> str:
        ratio, asked = self.ratio(peer), self.asked(peer)
        if ratio is not None:
            more = f" (asked {asked:g}×)" if asked > 1 else ""
            return f"{ratio:.2f}× {'won' if ratio >= asked else 'lost'}{more}"
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
            "asked": {peer: self.asked(peer) for peer in self.peers()},
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
