"""The log in files of this machine: for one process that writes and any number that read."""

from penstock.storage.log.embedded.log import EmbeddedLog
from penstock.storage.log.embedded.reader import LogReader, open_reader
from penstock.storage.log.embedded.repair import RepairReport, repair_topic

__all__ = ["EmbeddedLog", "LogReader", "RepairReport", "open_reader", "repair_topic"]
