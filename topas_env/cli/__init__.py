"""The `topas` command: what a person types; every subcommand imports what it needs when it runs."""

import os
import sys
from collections.abc import Sequence

from topas_env._errors import InputError

__all__ = ["main"]

TRACEBACK_VARIABLE = "TOPAS_TRACEBACK"


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command and ends the process.

    Args:
        arguments: what follows the command's name; those of the process if None.

    Raises:
        SystemExit: always; 0 when done, 2 for bad input (one line on standard error says which), 130 when
            interrupted, 1 for a fault of ours.
    """
    raise SystemExit(_run(sys.argv[1:] if arguments is None else list(arguments)))


def _run(arguments: list[str]) -> int:
    from topas_env.cli._app import app

    try:
        code = app(arguments, prog_name="topas", standalone_mode=False)
        sys.stdout.flush()
    except InputError as error:
        return _complain(str(error), 2)
    except BrokenPipeError:
        # The reader of our output has gone; what is left in the buffer must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            return 2
        if hasattr(error, "format_message"):  # a bad option, as typer and click report it
            return _complain(error.format_message(), 2)
        if type(error).__name__ == "Abort":
            return _complain("interrupted", 130)
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        text = f"this is a fault of ours: {type(error).__name__}: {error} (set {TRACEBACK_VARIABLE}=1 for a traceback)"
        return _complain(text, 1)
    return code if isinstance(code, int) else 0


def _complain(message: str, code: int) -> int:
    print("topas: " + " ".join(message.split()), file=sys.stderr)
    return code
