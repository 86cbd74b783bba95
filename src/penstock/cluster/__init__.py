"""Several brokers on one log: members, take-over of sessions, hand-over, departures."""
