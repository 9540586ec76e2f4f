"""`python -m prony` is `prony`."""

from prony.cli.main import main

if __name__ == "__main__":
    main()
