from tests.contract.log_scenarios import group, provider, topic

__all__ = ["group", "provider", "topic"]
