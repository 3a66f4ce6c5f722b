"""The command line. Results go to standard output, everything else to standard error.

An error is one sentence, with exit code 2.
"""

import errno
import io
import os
import sys
import tempfile
from collections.abc import Sequence

from labkit.commands import arguments
from labkit.commands.messages import drop_output, print_error
from labkit.common.errors import BadInput, LabkitError
from labkit.system import process

FAILED, INTERRUPTED = 2, 130
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)  # failed writes to a stream


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    if "--git-bisect" not in (sys.argv[1:] if argv is None else argv):
        return _main(argv)
    try:
        code = _main(argv)
    except SystemExit as end:  # of argparse
        code = end.code if isinstance(end.code, int) else 2
    return arguments.GIT_BISECT_STOPS if code == FAILED else code  # git would take 2 for a bad commit


def _main(argv: Sequence[str] | None) -> int:
    try:
        _standard_streams()
        _check_names(sys.argv[1:] if argv is None else argv)
        process.check_limits()
        _temporary_folder()
        given = arguments.parse(argv)
        code: int = given.function(given)
        sys.stdout.flush()
        return code
    except LabkitError as error:
        return print_error(str(error))
    except KeyboardInterrupt:
        kept = "finished points are on disk; repeat the same command to resume (a run needs --folder FOLDER)"
        command, *_ = *(sys.argv[1:] if argv is None else argv), ""
        print_error(f"interrupted: {kept}" if command in ("run", "sweep", "bisect") else "interrupted")
        return INTERRUPTED
    except MemoryError:
        return print_error("memory ran out: allow this process more (ulimit -v), or end other programs")
    except UnicodeEncodeError as error:  # of a file in a folder, for example
        return print_error(f"a name is not valid UTF-8 ({error.object[:200]!r}): rename the file")
    except BrokenPipeError:
        drop_output()  # the reader of our output, for example head(1), has closed the pipe
        return 0
    except OSError as error:
        return print_error(_what_failed(error))
    except RuntimeError as error:
        if sentence := process.exhausted(error):
            return print_error(sentence)
        if "Symlink loop" not in str(error):  # pathlib raises a RuntimeError for this
            raise
        return print_error(f"symbolic links form a loop: {error}")


def _check_names(argv: Sequence[str]) -> None:
    """Raise BadInput if the current folder is gone, or if an argument or that folder's name is not UTF-8.

    Rows and reports are UTF-8.
    """
    try:
        here = os.getcwd()
    except OSError:
        raise BadInput("the current folder has been removed: change to an existing folder") from None
    for word in (*argv, here):
        try:
            word.encode()
        except UnicodeEncodeError:
            raise BadInput(f"{word[:200]!r} has a byte that is not UTF-8: use another name") from None


def _standard_streams() -> None:
    """Make the standard streams safe to use.

    Characters that the terminal's encoding lacks are replaced. A closed stream is opened on /dev/null, because the next
    opened file would otherwise get its number.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.open(os.devnull, os.O_RDWR), "w" if number else "r"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _temporary_folder() -> None:
    """Raise BadInput if the programs that labkit starts cannot write into $TMPDIR."""
    given = os.environ.get("TMPDIR")
    if not given:
        return
    try:
        tempfile.TemporaryFile(dir=given).close()
    except OSError as error:
        if process.exhausted(error):
            raise
        raise BadInput(
            f"TMPDIR={given}: {error.strerror}: name a folder that can be written, or unset TMPDIR"
        ) from None


def _what_failed(error: OSError) -> str:
    """Describe in one sentence what the operating system refused."""
    if sentence := process.exhausted(error):
        return sentence
    if error.filename is not None:
        return f"{str(error.filename)[:200]}: {error.strerror}"
    if error.errno not in UNWRITABLE:
        return f"the operating system refused an operation: {error}"
    drop_output()
    return f"standard output cannot be written: {error.strerror or error}; the measured rows are on disk"


if __name__ == "__main__":
    sys.exit(main())
