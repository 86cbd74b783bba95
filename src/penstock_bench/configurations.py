"""How the brokers that a comparison knows are set up, by scenario: what is to be kept is kept by all of them."""

from __future__ import annotations

from dataclasses import dataclass

from penstock_bench.brokers import (
    MOSQUITTO_CONF,
    MOSQUITTO_CONF_FOR_BATCHES,
    MOSQUITTO_PLACE,
    PENSTOCK_PLACE,
    PENSTOCK_TOML,
    Broker,
)

LIMITS = "1,000 in flight and 100,000 queued for a client"
# The only settings of mosquitto that lose nothing acknowledged. As root it would give up its rights to the directory.
DURABLE_MOSQUITTO_CONF = (
    MOSQUITTO_CONF.replace("persistence false", "persistence true")
    + "persistence_location {dir}/\nautosave_on_changes true\nautosave_interval 1\nuser root\n"
)
DURABLE_PENSTOCK_TOML = PENSTOCK_TOML.replace('log = "none"', 'log = "all"')
APPLICATION_PENSTOCK_TOML = DURABLE_PENSTOCK_TOML + '[access]\nanonymous_type = "application"\n'


@dataclass(frozen=True)
class Configuration:
    """The files of the known brokers, and what they say in one line."""

    about: str
    mosquitto_conf: str
    penstock_toml: str

    def broker(self, name: str, command: str) -> Broker:
        return Broker(name, command, self.mosquitto_conf, self.penstock_toml)

    def files_of(self, broker: Broker) -> dict[str, str]:
        """Return the files that a broker is started with: those that its command names, and for Penstock the one that
        it gets in the environment."""
        files = {}
        if MOSQUITTO_PLACE in broker.command:
            files[MOSQUITTO_PLACE] = self.mosquitto_conf
        if broker.is_penstock:
            files[f"PENSTOCK_CONFIG={PENSTOCK_PLACE}"] = self.penstock_toml
        return files


IN_MEMORY = Configuration(f"anonymous, nothing kept on the disk, {LIMITS}", MOSQUITTO_CONF, PENSTOCK_TOML)
_KEPT = f"anonymous, {LIMITS}; mosquitto saves on every change, Penstock acknowledges what its log has on the disk"
DURABLE = Configuration(_KEPT, DURABLE_MOSQUITTO_CONF, DURABLE_PENSTOCK_TOML)
APPLICATION = Configuration(
    f"{_KEPT}; clients of Penstock are APPLICATION clients", DURABLE_MOSQUITTO_CONF, APPLICATION_PENSTOCK_TOML
)
IN_BATCHES = Configuration(
    f"{IN_MEMORY.about}; mosquitto puts small packets together, as is its default",
    MOSQUITTO_CONF_FOR_BATCHES,
    PENSTOCK_TOML,
)
_BY_SCENARIO = {"device": DURABLE, "queue": DURABLE, "application": APPLICATION}


def configuration_of(scenario: str, rate: float = 0.0) -> Configuration:
    """`rate` is what publishers are held to; 0: as fast as they can."""
    return _BY_SCENARIO.get(scenario, IN_MEMORY if rate else IN_BATCHES)
