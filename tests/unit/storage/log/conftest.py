from tests.support.servers.kafka_fixtures import kafka, kafka_cluster, topic

__all__ = ["kafka", "kafka_cluster", "topic"]
