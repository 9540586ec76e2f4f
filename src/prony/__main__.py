"""`python -m prony` is `prony`, and so is the program of that name."""

import signal

# Ctrl-C while the program is still being loaded ends it without a word about where that was.
WHEN_LOADED = signal.getsignal(signal.SIGINT)
if WHEN_LOADED is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from prony.cli.main import main  # noqa: E402

signal.signal(signal.SIGINT, WHEN_LOADED)

if __name__ == "__main__":
    main()
