"""Draws docs/long_runs.png: tokens per request over 300 rounds, and what a prompt cache has of them.

The run of `long_runs.py`, three times: as it grows, with summaries only, and with aging first.
Needs matplotlib: pip install matplotlib
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import long_runs
import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

ROUNDS = 300
WINDOW = 32_000
TARGET = Path(__file__).resolve().parent.parent / "docs" / "long_runs.png"


def played(ages: bool | None) -> long_runs.Model:
    """One run: `None` without a compactor, else with one that ages results or does not."""
    model = long_runs.Model(ROUNDS)
    folds = None if ages is None else long_runs.compactor(WINDOW, long_runs.Summariser(), ages=ages)
    with tempfile.TemporaryDirectory() as folder:
        long_runs.played(model, Path(folder) / "run.jsonl", folds)
    return model


def main() -> None:
    runs = {
        "as it grows": (played(None), "#999999"),
        "summaries only": (played(False), "#1f77b4"),
        "aging first": (played(True), "#d62728"),
    }
    figure, (above, below) = plt.subplots(2, 1, figsize=(9, 6), sharex=True, height_ratios=(2, 1))
    for name, (model, color) in runs.items():
        draw(above, below, name, model, color)
    above.axhline(WINDOW / 1000, color="black", linewidth=0.8, linestyle="--")
    above.annotate("the window", (ROUNDS, WINDOW / 1000), ha="right", va="bottom")
    above.set_ylabel("thousand tokens per request")
    above.set_ylim(0, 2 * WINDOW / 1000)
    above.legend(loc="upper left")
    below.set_ylabel("% a cache has")
    below.set_xlabel("request")
    below.set_ylim(0, 100)
    figure.tight_layout()
    TARGET.parent.mkdir(exist_ok=True)
    figure.savefig(TARGET, dpi=110, metadata={"Software": None})
    print(f"wrote {TARGET.relative_to(TARGET.parent.parent)}", file=sys.stderr)


def draw(above: Any, below: Any, name: str, model: long_runs.Model, color: str) -> None:
    total, repeated = sum(model.sizes), sum(model.repeated)
    label = f"{name}: {total / 1e6:.1f} M tokens sent, {100 * repeated / total:.0f} % of them cached"
    above.plot([size / 1000 for size in model.sizes], color=color, linewidth=1, label=label)
    shares = [100 * cached / size for cached, size in zip(model.repeated, model.sizes, strict=True)]
    below.plot(shares, color=color, linewidth=0.8)


if __name__ == "__main__":
    main()
