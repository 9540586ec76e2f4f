"""What verbs ask of the engine, with its warnings on stderr."""

from __future__ import annotations

import functools

from prony.cli.present import report
from prony.engine import history, site
from prony.engine import possible as questions

ask_node = functools.partial(questions.ask_node, report=report)
open_store = functools.partial(history.open_store, report=report)
find_partition = functools.partial(site.find_partition, report=report)
job_of = functools.partial(site.job_of, report=report)
