"""One file a step of the schema. A released step is never changed."""
