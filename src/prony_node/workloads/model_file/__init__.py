"""Workloads that a user has in a file of their own."""
