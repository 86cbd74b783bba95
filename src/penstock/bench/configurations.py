"""How the brokers that a comparison knows are set up, by scenario: what is to be kept is kept by all of them."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.bench.brokers import MOSQUITTO_CONF, PENSTOCK_TOML, Broker

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


IN_MEMORY = Configuration(f"anonymous, nothing kept on the disk, {LIMITS}", MOSQUITTO_CONF, PENSTOCK_TOML)
_KEPT = f"anonymous, {LIMITS}; mosquitto saves on every change, Penstock acknowledges what its log has on the disk"
DURABLE = Configuration(_KEPT, DURABLE_MOSQUITTO_CONF, DURABLE_PENSTOCK_TOML)
APPLICATION = Configuration(
    f"{_KEPT}; clients of Penstock are APPLICATION clients", DURABLE_MOSQUITTO_CONF, APPLICATION_PENSTOCK_TOML
)
_BY_SCENARIO = {"device": DURABLE, "queue": DURABLE, "application": APPLICATION}


def configuration_of(scenario: str) -> Configuration:
    return _BY_SCENARIO.get(scenario, IN_MEMORY)
