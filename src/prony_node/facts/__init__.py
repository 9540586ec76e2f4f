"""What a result depends on: host, devices, software, container, environment, source.

Nothing here raises: a fact that could not be found is null, with its reason in the `missing` list beside it. What a
framework knows of its devices is asked of the framework (`prony_node.backends`).
"""

from prony_node.facts.host import container_facts, environment_facts, host_facts
from prony_node.facts.software import fingerprint, software_facts, source_facts
from prony_node.facts.watch import Watch, watch_checks

__all__ = [
    "Watch",
    "container_facts",
    "environment_facts",
    "fingerprint",
    "host_facts",
    "software_facts",
    "source_facts",
    "watch_checks",
]
