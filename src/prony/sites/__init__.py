"""How runs are started, followed and collected; this machine is the first site."""
