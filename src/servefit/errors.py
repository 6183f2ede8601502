"""The one error type that servefit raises for what a user can put right."""


class ServefitError(Exception):
    """Something about the input is wrong.

    The message is one line that names the value, the limit it breaks and the remedy. The command
    line prints it without a traceback and exits with status 2.
    """
