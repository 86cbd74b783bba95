"""Files where the jobs write: a local directory, HDFS, S3 or whatever else Spark can reach by Hadoop's file systems."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


class Files:
    """A directory tree; paths are relative to its root."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._jvm: Any
        self._jvm = spark.sparkContext._jvm
        conf = spark.sparkContext._jsc.hadoopConfiguration()
        path = self._jvm.org.apache.hadoop.fs.Path(root)
        self._system = path.getFileSystem(conf)
        self.root = str(self._system.makeQualified(path).toString()).rstrip("/")
        # Hadoop keeps a checksum beside each local file; a kill between the two would make a good file a bad one
        self._plain = self._system.getRawFileSystem() if self.root.startswith("file:") else self._system

    def path(self, relative: str = "") -> str:
        return f"{self.root}/{relative}" if relative else self.root

    def _hadoop(self, relative: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.path(relative))

    def exists(self, relative: str = "") -> bool:
        return bool(self._system.exists(self._hadoop(relative)))

    def names(self, relative: str = "") -> list[str]:
        """Names in a directory, sorted; none when there is no such directory."""
        if not self.exists(relative):
            return []
        return sorted(str(status.getPath().getName()) for status in self._system.listStatus(self._hadoop(relative)))

    def walk(self, relative: str) -> Iterator[tuple[str, int]]:
        """Files below a directory, relative to the root, with their sizes; hidden ones are left out."""
        if not self.exists(relative):
            return
        found = self._system.listFiles(self._hadoop(relative), True)
        while found.hasNext():
            status = found.next()
            inner = str(status.getPath().toString())[len(self.path(relative)) + 1 :]
            if not any(part.startswith(("_", ".")) for part in inner.split("/")):
                yield f"{relative}/{inner}", int(status.getLen())

    def rename(self, source: str, target: str) -> None:
        """Moves a file; its directory is made. A file that has moved already is no error."""
        self._make_directory_of(target)
        if not self._system.rename(self._hadoop(source), self._hadoop(target)) and not self.exists(target):
            raise OSError(f"{self.path(source)} cannot be moved to {self.path(target)}")

    def _make_directory_of(self, relative: str) -> None:
        directory = relative.rpartition("/")[0]
        if directory:
            self._system.mkdirs(self._hadoop(directory))

    def delete(self, relative: str) -> None:
        self._system.delete(self._hadoop(relative), True)

    def read_text(self, relative: str) -> str:
        stream = self._plain.open(self._hadoop(relative))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write_text(self, relative: str, text: str) -> None:
        """All of it or nothing: written beside and renamed."""
        temporary = f"{relative}.tmp"
        stream = self._plain.create(self._hadoop(temporary), True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        self._make_directory_of(relative)
        if self._plain.rename(self._hadoop(temporary), self._hadoop(relative)):
            return
        # not every file system puts a file in the place of another one
        with contextlib.suppress(Exception):
            self._system.delete(self._hadoop(relative), False)
        self.rename(temporary, relative)

    def read_json(self, relative: str) -> Any:
        return json.loads(self.read_text(relative)) if self.exists(relative) else None

    @property
    def local(self) -> Path | None:
        """The root, where it is a directory of this machine."""
        return Path("/" + self.root.removeprefix("file:").lstrip("/")) if self.root.startswith("file:") else None
