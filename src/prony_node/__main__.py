"""`python -m prony_node PLAN OUT` makes one run; a few words answer questions about this node."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from prony_node.contract.cache import name_user

USAGE = """\
usage: python -m prony_node PLAN OUT     make the run of the plan file PLAN (- is standard input) into the folder OUT
       python -m prony_node doctor       this node as Prony sees it, as JSON
       python -m prony_node devices      the devices that torch finds, as JSON
       python -m prony_node fingerprint [WORKLOAD ...]
                                         hashes of machine and software, as JSON, without importing torch
       python -m prony_node workload X   whether this node can build the workload X (timm/NAME), as JSON
       python -m prony_node model FILE   what a user's own model file states, or what is wrong with it, as JSON
       python -m prony_node data ...     a data set shown, generated or verified, as lines of JSON; data --help
       python -m prony_node verify FOLDER ...
                                         whether run folders agree with their manifest and files, as lines of JSON
       python -m prony_node carry ...    the script on standard input, of a job in a pod, its files sent back
                                         through the log
       python -m prony_node job FOLDER   the script on standard input, of the job in FOLDER, its logs kept small
       python -m prony_node power ...    the energy of any command, or live power; power --help says more

exit codes: 0 good; 1 it ran and failed; 2 the request was wrong and nothing ran; 130 interrupted
"""

# Questions about this node: the fewest and the most words of each.
QUESTIONS = {
    "doctor": (1, 1),
    "devices": (1, 1),
    "fingerprint": (1, sys.maxsize),
    "workload": (2, 2),
    "model": (2, 2),
}


def main(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0 if words else 2
    if words[0] == "power":
        from prony_node.power.any_command import main as power

        return power(words[1:])
    name_user()  # not for a command whose power is measured: its environment stays its own
    if words[0] == "data":
        from prony_node.data.command import main as data

        return data(words[1:])
    if words[0] == "carry":
        from prony_node.run.job_script import run_job_script

        return run_job_script(words[1:])
    if words[0] == "job" and len(words) == 2:
        from prony_node.run.job_script import run_script

        return run_script(Path(words[1]))
    if words[0] == "verify" and len(words) > 1:
        from prony_node.run.verify import main as verify

        return verify(words[1:])
    fewest, most = QUESTIONS.get(words[0], (0, 0))
    if fewest <= len(words) <= most:
        from prony_node.run.processes import controller_pid

        if controller_pid() is None:
            return _answer(words)
        from prony_node.run.questions import answer_on_lifeline

        return answer_on_lifeline(lambda: _answer(words))
    if len(words) != 2:
        print(f"prony_node: {' '.join(words)!r} is not a request it knows\n{USAGE}", end="", file=sys.stderr)
        return 2
    from prony_node.run.supervisor import supervise

    return supervise(Path(words[0]), Path(words[1]))


def _answer(words: list[str]) -> int:
    if words[0] == "fingerprint":
        from prony_node.run.questions import fingerprints

        return _print(fingerprints(words[1:]))
    if words[0] == "devices":
        from prony_node.run.questions import find_devices

        return _print(find_devices())
    if words[0] == "workload":
        from prony_node.run.questions import check_name

        return _print(check_name(words[1]))
    if words[0] == "model":
        from prony_node.run.questions import describe_model_file

        return _print(describe_model_file(Path(words[1])))
    from prony_node.run.questions import doctor

    return _print(doctor())


def _print(document: Any) -> int:
    print(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
