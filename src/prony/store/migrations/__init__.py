"""How a store of an older schema becomes one of this schema; run by prony.store.database when a store is opened."""
