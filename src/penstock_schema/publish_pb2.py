"""The messages of publish.proto for Google's protobuf library, as protoc would make them.

Built from the field table when it is imported instead of being generated: protoc's output works only with the versions
of the library that are as new as the protoc was, this works with any. A test compares it with protoc's own reading of
publish.proto. This is the only module here that needs the protobuf library.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# The library has no types of its own; nothing else here depends on it.
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

from penstock_schema.fields import PACKAGE, PUBLISH_FIELDS, USER_PROPERTY_FIELDS, Field

_Proto = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "uint32": _Proto.TYPE_UINT32,
    "int64": _Proto.TYPE_INT64,
    "bool": _Proto.TYPE_BOOL,
    "string": _Proto.TYPE_STRING,
    "bytes": _Proto.TYPE_BYTES,
    "UserProperty": _Proto.TYPE_MESSAGE,
}


def build_file(fields: Iterable[Field] = PUBLISH_FIELDS, name: str = "publish.proto") -> Any:
    """The file as protoc describes it; other fields than the released ones are for tests of later versions."""
    file = descriptor_pb2.FileDescriptorProto(name=name, package=PACKAGE, syntax="proto3")
    _add_message(file, "UserProperty", USER_PROPERTY_FIELDS)
    _add_message(file, "Publish", fields)
    return file


def _add_message(file: Any, name: str, fields: Iterable[Field]) -> None:
    message = file.message_type.add(name=name)
    for field in fields:
        added = message.field.add(name=field.name, number=field.number, type=_TYPES[field.type])
        added.label = _Proto.LABEL_REPEATED if field.label == "repeated" else _Proto.LABEL_OPTIONAL
        added.json_name = _camel(field.name)
        if field.type == "UserProperty":
            added.type_name = f".{PACKAGE}.UserProperty"
        if field.label == "optional":
            # proto3 tells absent from empty by putting the field into a oneof of its own
            added.proto3_optional = True
            added.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


def build_messages(file: Any) -> dict[str, Any]:
    """The classes of a file's messages, by name."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        message.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{message.name}"))
        for message in file.message_type
    }


def describe() -> bytes:
    """What `protoc --descriptor_set_out` writes of publish.proto: Spark's from_protobuf and others read it."""
    return bytes(descriptor_pb2.FileDescriptorSet(file=[build_file()]).SerializeToString())


_messages = build_messages(build_file())
Publish: Any = _messages["Publish"]
UserProperty: Any = _messages["UserProperty"]
