"""A consumer in a process of its own, to be killed: prints how many partitions it has, and the numbers it gets."""

from __future__ import annotations

import json
import sys

from penstock_client import Consumer


def main(config: str, topic: str) -> None:
    consumer = Consumer(json.loads(config))
    consumer.subscribe([topic], on_assign=lambda _, __: print("assigned", len(consumer.assignment())))
    for message in consumer:
        for row in message:
            print("got", row["n"])


if __name__ == "__main__":
    main(*sys.argv[1:])
