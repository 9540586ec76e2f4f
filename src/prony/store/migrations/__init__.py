"""How a store of an older schema becomes one of this schema; run by prony.store.schema when a store is opened."""
