"""The log in files of this machine: for one process that writes and any number that read."""

from penstock.logs.embedded.log import EmbeddedLog
from penstock.logs.embedded.reader import LogReader, open_reader
from penstock.logs.embedded.repair import RepairReport, repair_topic

__all__ = ["EmbeddedLog", "LogReader", "RepairReport", "open_reader", "repair_topic"]
