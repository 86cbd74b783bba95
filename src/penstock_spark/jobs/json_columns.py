"""JSON payloads as columns: by a schema that is declared, or found in a sample and kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from penstock_spark.errors import OptionError

PREFIX = "json_"
UNPARSED = "json_unparsed"
SAMPLE = 10_000
_CORRUPT = "_corrupt"
# names of fields, from the outermost
FieldPath = tuple[str, ...]


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


def _leaves(schema: StructType, path: FieldPath = ()) -> Iterator[tuple[FieldPath, DataType]]:
    for field in schema.fields:
        here = (*path, field.name)
        if isinstance(field.dataType, StructType):
            yield from _leaves(field.dataType, here)
        else:
            yield here, StringType() if _has_twins(field.dataType) else field.dataType


def _has_twins(kind: DataType) -> bool:
    """Names within an array that differ in case only: a table with them could be written and never read again."""
    if isinstance(kind, ArrayType):
        return _has_twins(kind.elementType)
    if isinstance(kind, MapType):
        return _has_twins(kind.valueType)
    if not isinstance(kind, StructType):
        return False
    names = {name.lower() for name in kind.names}
    return len(names) < len(kind.fields) or any(_has_twins(field.dataType) for field in kind.fields)


def _without_twins(schema: StructType) -> list[dict[FieldPath, DataType]]:
    """The leaves in groups of which none has two names side by side that differ in case only: to Spark they would be
    one name. Nearly always it is one group."""
    groups: list[dict[FieldPath, DataType]] = [{}]
    spellings: list[dict[FieldPath, str]] = [{}]  # of each group: how the name at a place is written
    for path, kind in _leaves(schema):
        spelling = {tuple(map(str.lower, path[: depth + 1])): name for depth, name in enumerate(path)}
        fitting = (
            number
            for number, spelled in enumerate(spellings)
            if all(spelled.get(place, name) == name for place, name in spelling.items())
        )
        number = next(fitting, len(groups))
        if number == len(groups):
            groups.append({})
            spellings.append({})
        groups[number][path] = kind
        spellings[number] |= spelling
    return groups


def _schema_of(leaves: Mapping[FieldPath, DataType]) -> StructType:
    """Structures again, out of the leaves of a group."""
    inner: dict[str, dict[FieldPath, DataType]] = {}
    found: dict[str, DataType] = {}
    for (name, *rest), kind in leaves.items():
        if rest:
            inner.setdefault(name, {})[tuple(rest)] = kind
            found[name] = StructType()  # its place among its siblings
        else:
            found[name] = kind
    return StructType(
        [StructField(name, _schema_of(inner[name]) if name in inner else kind) for name, kind in found.items()]
    )


def with_json(messages: DataFrame, schema: StructType) -> DataFrame:
    """Adds a column `json_<name>` for each field (nested ones joined by _) and `json_unparsed`: the text of a payload
    that is not JSON of the schema, null for one that is. Of names that would be the same column, also because they
    differ in case only, the later ones have a _ at their end."""
    corrupt = StructField(_CORRUPT, StringType(), True)
    options = {"columnNameOfCorruptRecord": _CORRUPT, "mode": "PERMISSIVE"}
    parsed = messages
    columns: dict[FieldPath, Column] = {}
    for number, leaves in enumerate(_without_twins(schema)):
        root = f"_json{number}"
        kind = StructType([*_schema_of(leaves).fields, corrupt])
        parsed = parsed.withColumn(root, F.from_json("payload_text", kind, options))
        for path in leaves:
            columns[path] = reduce(Column.getField, path, F.col(root))
    roots = parsed.columns[len(messages.columns) :]
    taken = {UNPARSED}
    named: list[Column] = []
    for path, _ in _leaves(schema):
        name = PREFIX + "_".join(path)
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        named.append(columns[path].alias(name))
    is_text = F.col("payload_text").isNotNull()
    corrupt_text = F.coalesce(*(F.col(f"{root}.{_CORRUPT}") for root in roots))
    unparsed = F.when(~is_text, F.base64("payload")).otherwise(corrupt_text)
    # an empty text is null to from_json, with nothing noted as corrupt
    unparsed = F.when(is_text & F.col(roots[0]).isNull(), F.col("payload_text")).otherwise(unparsed)
    return parsed.select(*messages.columns, *named, unparsed.alias(UNPARSED))
