"""The entry point of the command `labkit`.

An interrupt during the imports, which take half a second, prints no traceback.
"""


def main() -> int:
    """Run the command line and return the exit code."""
    try:
        from labkit import cli

        return cli.main()
    except KeyboardInterrupt:
        return 130
