"""Where a rank stands among the others: told by the plan and by the environment that torch's launcher makes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from prony_node.contract.digits import is_digits
from prony_node.contract.errors import RequestError
from prony_node.contract.parallel import check_nodes, rank_count, ranks_per_node
from prony_node.contract.settings import Value

NODE_RANK = "PRONY_NODE_RANK"  # which of the nodes this one is, from 0
RENDEZVOUS = "PRONY_RENDEZVOUS"  # HOST:PORT where all nodes meet; the first node listens there
LAST_PORT = 65535
ADDRESS = "PRONY_ADDRESS"  # under which the other nodes reach this one, where its host name does not say it


@dataclass(frozen=True)
class RankPosition:
    """One rank of so many. Alone, when nothing else is said."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    node: int = 0
    nodes: int = 1


def node_rank(settings: Mapping[str, Value]) -> int:
    """Which node this is, of a trial with these settings."""
    nodes = int(settings.get("nodes", 1))
    check_nodes(settings)
    if rank_count(settings) > 1:
        meeting_place()  # refused here, where nothing has started
    if nodes == 1:
        return 0
    text = os.environ.get(NODE_RANK, "")
    if not is_digits(text) or int(text) >= nodes:
        raise RequestError(
            f"nodes={nodes} needs {NODE_RANK} to say which node this is, from 0 to {nodes - 1}; found {text!r}"
        )
    if not os.environ.get(RENDEZVOUS):
        raise RequestError(f"nodes={nodes} needs {RENDEZVOUS}=HOST:PORT, an address of the first node where all meet")
    return int(text)


def meeting_place() -> str:
    """Where the processes of a run meet: as the environment says, else at a port of this host that is free."""
    text = os.environ.get(RENDEZVOUS) or "localhost:0"
    host, _, port = text.rpartition(":")
    if not host or not is_digits(port) or int(port) > LAST_PORT:
        raise RequestError(
            f"{RENDEZVOUS}={text} is no HOST:PORT with a port up to {LAST_PORT}, such as node017:29500, an address of "
            "the first node where all meet"
        )
    return text


def place_of(settings: Mapping[str, Value]) -> RankPosition:
    """The place of this process. Ranks are counted by node, whatever order the nodes arrived in."""
    size, local_size = rank_count(settings), ranks_per_node(settings)
    if size == 1:
        return RankPosition()
    node, local_rank = node_rank(settings), int(os.environ["LOCAL_RANK"])
    return RankPosition(
        node * local_size + local_rank, size, local_rank, local_size, node, int(settings.get("nodes", 1))
    )
