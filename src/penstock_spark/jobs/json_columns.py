"""JSON payloads as columns: by a schema that is declared, or found in a sample and kept."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, StructField, StructType

from penstock_spark.errors import OptionError

PREFIX = "json_"
UNPARSED = "json_unparsed"
SAMPLE = 10_000
_CORRUPT = "_corrupt"


def parse_schema(text: str) -> StructType:
    """A declared schema: `temperature DOUBLE, place STRUCT<lat: DOUBLE, lon: DOUBLE>`."""
    try:
        found = StructType.fromDDL(text)
    except Exception as error:
        raise OptionError(f"--json {text!r} is not a schema", "Write it as in CREATE TABLE: a INT, b STRING") from error
    if not isinstance(found, StructType):
        raise OptionError(f"--json {text!r} is not a schema of columns")
    return found


def infer_schema(spark: SparkSession, messages: DataFrame) -> StructType:
    """The schema that a sample of the payloads has."""
    sample = messages.filter(F.col("payload_text").rlike(r"^\s*\{")).select("payload_text").limit(SAMPLE)
    texts = [row.payload_text for row in sample.collect()]
    found = spark.read.json(spark.sparkContext.parallelize(texts, 1)).schema if texts else StructType([])
    return StructType([field for field in found.fields if field.name != "_corrupt_record"])


def _leaves(schema: StructType, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], DataType]]:
    for field in schema.fields:
        here = (*path, field.name)
        if isinstance(field.dataType, StructType):
            yield from _leaves(field.dataType, here)
        else:
            yield here, field.dataType


def with_json(messages: DataFrame, schema: StructType) -> DataFrame:
    """Adds a column `json_<name>` for each field (nested ones joined by _) and `json_unparsed`: the text of a payload
    that is not JSON of the schema, null for one that is."""
    corrupt = StructField(_CORRUPT, StringType(), True)
    options = {"columnNameOfCorruptRecord": _CORRUPT, "mode": "PERMISSIVE"}
    parsed = messages.withColumn("_json", F.from_json("payload_text", StructType([*schema.fields, corrupt]), options))
    columns: list[Column] = []
    taken: set[str] = set()
    for path, _ in _leaves(schema):
        name = PREFIX + "_".join(path)
        while name in taken or name == UNPARSED:
            name += "_"
        taken.add(name)
        inner = F.col("_json")
        for part in path:
            inner = inner.getField(part)
        columns.append(inner.alias(name))
    is_text = F.col("payload_text").isNotNull()
    unparsed = F.when(~is_text, F.base64("payload")).otherwise(F.col(f"_json.{_CORRUPT}"))
    # an empty text is null to from_json, with nothing noted as corrupt
    unparsed = F.when(is_text & F.col("_json").isNull(), F.col("payload_text")).otherwise(unparsed)
    return parsed.select(*messages.columns, *columns, unparsed.alias(UNPARSED))
