"""Runs a job on a cluster: spark-submit … penstock_job.py JOB SOURCE OUTPUT [OPTIONS], the last three as in

lake '{"kafka": "host:9092", "options": {"topic_filter": "plant/#"}}' hdfs:///lake '{"levels": 2}'
"""

from __future__ import annotations

import json
import sys
from importlib import import_module

from pyspark.sql import SparkSession

from penstock_spark import PenstockSparkError
from penstock_spark.jobs.base import MessageSource

OPTIONS = {
    "lake": "LakeOptions",
    "traffic": "TrafficOptions",
    "devices": "DeviceOptions",
    "delivery": "DeliveryOptions",
    "sessions": "SessionOptions",
}


def main(arguments: list[str]) -> None:
    if len(arguments) not in (3, 4) or arguments[0] not in OPTIONS:
        sys.exit(f"usage: {'|'.join(OPTIONS)} SOURCE-JSON OUTPUT [OPTIONS-JSON]")
    name, source, output = arguments[:3]
    module = import_module(f"penstock_spark.jobs.{name}")
    try:
        options = getattr(module, OPTIONS[name])(**(json.loads(arguments[3]) if len(arguments) > 3 else {}))
        where = MessageSource(**json.loads(source))
    except (TypeError, ValueError) as error:
        sys.exit(f"penstock: the source or the options are not understood: {error}")
    spark = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    try:
        outcome = module.run(spark, where, output, options)
    except PenstockSparkError as error:
        sys.exit(f"penstock: {error}")
    print(json.dumps({"job": name, "messages": outcome.messages, "bad": outcome.bad, **outcome.facts}, default=str))


if __name__ == "__main__":
    main(sys.argv[1:])
