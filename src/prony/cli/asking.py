"""What verbs ask of the engine, with its warnings on stderr."""

from __future__ import annotations

import functools

from prony.cli.present import report
from prony.engine import ask_node as questions
from prony.engine import history, possible, site

ask_node = functools.partial(questions.ask_node, report=report)
open_store = functools.partial(history.open_store, report=report)
updated_store = functools.partial(history.updated_store, report=report)
read_history = functools.partial(history.read_history, report=report)
history_at_site = functools.partial(site.history_at_site, report=report)
find_partition = functools.partial(site.find_partition, report=report)
job_roots = functools.partial(site.job_roots, report=report)
job_of = functools.partial(site.job_of, report=report)
planned_here = functools.partial(possible.planned_here, report=report)
impossible_here = functools.partial(possible.impossible_here, report=report)
