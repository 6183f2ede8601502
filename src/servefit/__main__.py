"""``python -m servefit``."""

from servefit.cli import main

main()
