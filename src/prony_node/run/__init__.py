"""One run on this node: the supervisor, the rank it starts, and what becomes of them."""
