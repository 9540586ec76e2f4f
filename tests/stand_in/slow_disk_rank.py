"""The real rank on a disk that takes a while, so that it can be killed while it writes its result."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from prony_node.contract import files
from prony_node.run import rank

SLOW_S = 0.03  # before a result is whole, and after


def main() -> None:
    replace = Path.replace

    def slowly(self: Path, target: Path) -> Path:
        if target.name != files.RESULT:
            return replace(self, target)
        time.sleep(SLOW_S)
        done = replace(self, target)
        time.sleep(SLOW_S)
        return done

    Path.replace = slowly  # type: ignore[assignment, method-assign]
    os._exit(rank.main(sys.argv[1:]))


if __name__ == "__main__":
    main()
