"""The entry point of the command `labkit`.

An interrupt during the imports, which take half a second, prints no traceback. Nor does a faulty package that extends
labkit.
"""

from __future__ import annotations

import sys

from labkit.common.errors import LabkitError


def main() -> int:
    """Run the command line and return the exit code."""
    try:
        try:
            from labkit import cli
        except LabkitError as error:
            print(f"labkit: {error}", file=sys.stderr)
            return 2
        return cli.main()
    except KeyboardInterrupt:
        return 130
