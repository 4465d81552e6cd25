"""Run the scoreboard, or write its page from stored results."""

import argparse
from pathlib import Path

from scoreboard.data import FOLDER, find_sets
from scoreboard.peers import PEERS
from scoreboard.runner import BENCHMARKS, RESULTS, order, run_all

NUM_SPLITS = 5


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scoreboard", description=__doc__)
    parser.add_argument("--sets", help="separated by commas; all that are there if not given")
    parser.add_argument("--splits", default=",".join(map(str, range(NUM_SPLITS))), help="separated by commas")
    parser.add_argument("--peers", default=",".join(PEERS), help="separated by commas")
    parser.add_argument("--seeds", default="0", help="separated by commas")
    parser.add_argument("--data", type=Path, default=FOLDER, help="with the folders uci and operators")
    parser.add_argument("--results", type=Path, default=RESULTS, help="one JSON file for each run")
    parser.add_argument("--docs", type=Path, default=BENCHMARKS.parent / "docs", help="where the page goes")
    parser.add_argument("--budget", type=float, default=1200, help="wall seconds of a run")
    parser.add_argument(
        "--share", type=float, default=1.0, help="of the steps and draws of every peer; below 1 in tests"
    )
    parser.add_argument("--table", action="store_true", help="write the page from stored results, and run nothing")
    arguments = parser.parse_args()
    names = arguments.sets.split(",") if arguments.sets else find_sets(arguments.data)
    peers = arguments.peers.split(",")
    if unknown := set(peers) - set(PEERS):
        parser.error(f"--peers must be among {', '.join(PEERS)}, got {', '.join(sorted(unknown))}")
    if not arguments.table:
        seeds, splits = (map(int, part.split(",")) for part in (arguments.seeds, arguments.splits))
        runs = order(names, splits, peers, seeds)
        settings = {"data": arguments.data, "budget": arguments.budget, "share": arguments.share}
        run_all(runs, results=arguments.results, **settings)
    from scoreboard.page import write_page

    write_page(arguments.results, arguments.docs)


if __name__ == "__main__":
    main()
