"""`prony power`: energy for any command, or live power. The node program measures; this one makes way for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from prony.sites.node import replacing_argv
from prony_node.contract.errors import RequestError
from prony_node.contract.metrics import find_rates


def power(
    command: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND ...", help="Command to run.")] = None,
    interval: Annotated[str, typer.Option(help="Time between two reads of a sensor.")] = "50ms",
    readers: Annotated[
        str, typer.Option(metavar="NAMES", help="Readers to use, separated by commas (default: all).")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the samples (default: runs/power-...).")
    ] = None,
    as_json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures to this file.")
    ] = None,
    carbon: Annotated[str | None, typer.Option(metavar="G_PER_KWH", help="Grams of CO2e per kWh.")] = None,
    price: Annotated[str | None, typer.Option(metavar="AMOUNT_PER_KWH", help="Price per kWh: 0.31 or 0.31EUR.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show live power of this machine's devices.")] = False,
    list_readers: Annotated[bool, typer.Option("--list-readers", help="List the readers.")] = False,
) -> None:
    """Measure the energy of any command; its input, output, signals and exit code stay its own."""
    if not command and not watch and not list_readers:
        raise RequestError("there is no command to measure: prony power -- COMMAND ..., or prony power --watch")
    find_rates(carbon, price, os.environ)
    given = {"--interval": interval, "--readers": readers, "--out": out, "--json": as_json, "--carbon": carbon,
             "--price": price}  # fmt: skip
    words = [f"{name}={value}" for name, value in given.items() if value not in (None, "")]
    words += [name for name, wanted in (("--watch", watch), ("--list-readers", list_readers)) if wanted]
    argv = [*replacing_argv(), "power", *words, *(["--", *command] if command else [])]
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        raise RequestError(f"the node program cannot be started: {argv[0]}: {error.strerror or error}") from error
