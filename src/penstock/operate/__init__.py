"""For operators: HTTP API, metrics, $SYS, doctor, backup, inspection of logs."""
