"""Every file that a comment, a docstring or a document names is there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tests.unit.source.prose import CODE, DOCUMENTS, ROOT, comments_of, name_of, prose_of, tracked

NAMED = re.compile(r"(?<![\w./<{*$-])((?:[\w.-]+/)*[\w.-]+\.(?:pyx|pyi|py|pxi|pxd|md|lua|proto|sh|[ch]))(?![\w*/])")
# Where a name may begin, besides the directory of the file that has it.
BASES = ("", "src", "src/penstock", "ext/penstock/_ext", "ext", "tests", "tests/support", "docs", "docs/adr")
MODULE = re.compile(r"(?<![\w./-])(penstock(?:_\w+)?(?:\.[a-zA-Z_]\w*)+)(?![\w/-])")
# Files of a reader, names of loggers, of topics and of protobuf packages.
NOT_MODULES = {
    "penstock.cluster.shares",
    "penstock.datasub",
    "penstock.key",
    "penstock.pem",
    "penstock.service",
    "penstock.toml",
    "penstock.v1",
    "penstock.v1.Publish",
    "penstock_job.py",
}
# Names of files that are not in the tree, and whose they are.
ELSEWHERE = {
    "_ssl.c": "Python's",
    "kafka-configs.sh": "Kafka's",
    "kafka-reassign-partitions.sh": "Kafka's",
    "librdkafka/blob/master/CONFIGURATION.md": "librdkafka's",
    "penstock_job.py": "written by `penstock spark package`",
    "rdkafka.h": "librdkafka's",
    "submit.sh": "written by `penstock spark package`",
    "./submit.sh": "written by `penstock spark package`",
    "sys/epoll.h": "the system's",
    "sysexits.h": "the system's",
}


@cache
def every_name() -> frozenset[str]:
    return frozenset(path.name for path in tracked("*"))


def is_there(name: str, path: Path) -> bool:
    if "/" not in name and name in every_name():
        return True
    places = [path.parent, *(ROOT / base for base in BASES)]
    return any((place / name).exists() for place in places)


def test_every_file_that_is_named_exists() -> None:
    texts = [(path, prose_of(path)) for path in tracked(*CODE, *DOCUMENTS, "Makefile", "pyproject.toml")]
    texts += [(path, comments_of(path)) for path in tracked("tests/**/*.py", "bench/**/*.py")]
    gone = [
        f"{name_of(path)}: {name}"
        for path, text in texts
        for name in NAMED.findall(text)
        if name not in ELSEWHERE and not is_there(name, path)
    ]
    assert not gone, "\n".join(gone)


def test_every_module_that_is_named_exists() -> None:
    """`penstock.sessions.keeper` in a comment, a docstring or a document; a class or function may follow."""
    gone = []
    for path in tracked(*CODE, *DOCUMENTS, "tests/**/*.py", "bench/**/*.py"):
        for name in MODULE.findall(comments_of(path)):
            if name not in NOT_MODULES and not _is_module(name):
                gone.append(f"{name_of(path)}: {name}")
    assert not gone, "\n".join(gone)


def _is_module(name: str) -> bool:
    """Whether the name is that of a package or a module, or of something in a module."""
    package, *rest = name.split(".")
    place = ROOT / "src" / package
    for at, part in enumerate(rest):
        if (place / part).is_dir():
            place /= part
            continue
        module = [place / f"{part}.py", place / f"{part}.pyi"]
        if any(file.exists() for file in module):
            return True
        init = place / "__init__.py"
        return at == len(rest) - 1 and init.exists() and re.search(rf"\b{part}\b", init.read_text()) is not None
    return True
