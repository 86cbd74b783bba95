"""A real Kafka as operators have it: one broker with SASL_SSL (SCRAM-SHA-512) and SSL with client certificates, from
the same jars as the plain one. Its plain listener is for the tests themselves.

python -m tests.support.servers.kafka_secure run   until Ctrl-C; prints the settings for penstock
"""

from __future__ import annotations

import shlex
import signal
from concurrent.futures import Future
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from tests.support.machine.ports import free_port
from tests.support.servers.certificates import CertificateSet, Identity
from tests.support.servers.kafka_cluster import KafkaCluster, Node

USER = "penstock"
PASSWORD = "opens-the-log"
SECONDS = 60.0
# What docs/kafka-security.md says that a user of Penstock needs, and nothing more.
TOPICS = ("tbmq.", "tb_", "penstock.", "test-")
ON_TOPICS = ("CREATE", "DELETE", "READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS")
ON_GROUPS = ("READ", "DESCRIBE", "DELETE")
ON_CLUSTER = ("DESCRIBE", "IDEMPOTENT_WRITE")


class SecureKafka(KafkaCluster):
    """One broker. Certificates are made when it is."""

    def __init__(self) -> None:
        super().__init__(1)
        self.sasl_port, self.ssl_port = free_port(), free_port()
        self.certificates = CertificateSet(self.directory)
        self._present(self.certificates.server)

    def start(self, *options: str) -> SecureKafka:
        super().start(*options)
        self.set_password(PASSWORD)
        self._allow(f"User:{USER}", "User:CN=pump-7")
        return self

    @property
    def sasl_servers(self) -> str:
        return f"127.0.0.1:{self.sasl_port}"

    @property
    def ssl_servers(self) -> str:
        return f"127.0.0.1:{self.ssl_port}"

    def sasl(self, **changes: str) -> dict[str, str]:
        """Settings of Penstock; `changes` of properties have _ for each dot."""
        properties = {
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(self.certificates.ca.path),
        }
        return self._settings(self.sasl_servers, properties, changes)

    def ssl(self, identity: Identity | None = None, **changes: str) -> dict[str, str]:
        identity = identity or self.certificates.client
        properties = {
            "security.protocol": "ssl",
            "ssl.ca.location": str(self.certificates.ca.path),
            "ssl.certificate.location": str(identity.certificate),
            "ssl.key.location": str(identity.key),
        }
        return self._settings(self.ssl_servers, properties, changes)

    @staticmethod
    def _settings(servers: str, properties: dict[str, str], changes: dict[str, str]) -> dict[str, str]:
        properties |= {name.replace("_", "."): value for name, value in changes.items()}
        common = {f"kafka.common.{name}": value for name, value in properties.items()}
        return {"log.provider": "kafka", "kafka.bootstrap_servers": servers, **common}

    def set_password(self, password: str) -> None:
        """Kafka knows the user by this one from now on."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        self._alter(UserScramCredentialUpsertion(USER, info, password.encode()))

    def remove_user(self) -> None:
        self._alter(UserScramCredentialDeletion(USER, ScramMechanism.SCRAM_SHA_512))

    def _allow(self, *principals: str) -> None:
        rights = [(ResourceType.TOPIC, name, ResourcePatternType.PREFIXED, ON_TOPICS) for name in TOPICS]
        rights.append((ResourceType.GROUP, "*", ResourcePatternType.LITERAL, ON_GROUPS))
        rights.append((ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL, ON_CLUSTER))
        bindings = [
            AclBinding(kind, name, pattern, who, "*", AclOperation[operation], AclPermissionType.ALLOW)
            for who in principals
            for kind, name, pattern, operations in rights
            for operation in operations
        ]
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for answer in admin.create_acls(bindings, request_timeout=SECONDS).values():
            answer.result(SECONDS)

    def _alter(self, change: Any) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        answers: dict[str, Future[None]] = admin.alter_user_scram_credentials([change], request_timeout=SECONDS)
        answers[USER].result(SECONDS)

    def _present(self, identity: Identity) -> None:
        """What the broker shows its clients from its next start on."""
        self._key_store = identity.certificate.with_suffix(".keystore.pem")
        self._key_store.write_bytes(identity.key.read_bytes() + identity.certificate.read_bytes())

    def _properties(self, node: Node) -> str:
        listeners = {
            "PLAINTEXT": f"127.0.0.1:{node.port}",
            "SASL_SSL": self.sasl_servers,
            "SSL": self.ssl_servers,
        }
        shown = ",".join(f"{name}://{address}" for name, address in listeners.items())
        names = (*listeners, "CONTROLLER")
        properties = {
            "listeners": f"{shown},CONTROLLER://127.0.0.1:{node.controller_port}",
            "advertised.listeners": shown,
            "listener.security.protocol.map": ",".join(
                f"{name}:{'PLAINTEXT' if name == 'CONTROLLER' else name}" for name in names
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self._key_store,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.certificates.ca.path,
            "listener.name.ssl.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            # Who comes by the plain listeners: the tests, and the broker as its own controller.
            "super.users": "User:ANONYMOUS",
            # A wrong password is answered at once: tests have many of them.
            "connection.failed.authentication.delay.ms": 0,
        }
        # The last line of a name counts.
        return super()._properties(node) + "".join(f"{name}={value}\n" for name, value in properties.items())


def main() -> None:
    kafka = SecureKafka().start()
    for settings in (kafka.sasl(), kafka.ssl()):
        print(" ".join(f"--set {shlex.quote(f'{name}={value}')}" for name, value in settings.items()), flush=True)
    try:
        signal.pause()
    except KeyboardInterrupt:
        kafka.stop()


if __name__ == "__main__":
    main()
