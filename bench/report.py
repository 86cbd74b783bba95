#!/usr/bin/env python3
"""Puts the newest result of bench/results into the documents: what stands between their markers, and the chart.

python bench/report.py             README.md, docs/benchmarks.md, docs/benchmarks.svg, docs/benchmarks-persistence.md
python bench/report.py --check     change nothing, exit with 1 when they are not up to date
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from penstock_bench import documents

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--result", type=Path, help="this result instead of the newest")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    parser.add_argument(
        "--check", action="store_true", help="change nothing, exit with 1 when a document is out of date"
    )
    args = parser.parse_args(argv)
    source = args.result or documents.newest_result(RESULTS)
    kept = [documents.load_result(path) for path in source.parent.glob("*.json")] if source else []
    texts = documents.render_documents(args.root, RESULTS, documents.load_result(source) if source else None, kept)
    stale = [
        path
        for path, text in texts.items()
        if not (args.root / path).exists() or (args.root / path).read_text() != text
    ]
    for path in stale:
        if not args.check:
            (args.root / path).write_text(texts[path])
        print(f"{'out of date' if args.check else 'written'}: {path}")
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
