"""The command line: one verb a file, and the only place that prints or exits."""
