"""Result files of the field's tools, turned into rows of the table of runs.

Data flows one way: `source` finds and decodes files, `document` tells JSON from text, a module of
`formats` reads points, `derive` completes them, `judge` and `series` check them, `rows` makes the
table. A new format is one module, its name in `registry`, and a fixture.
"""

from servefit.importers.collect import Import, import_files
from servefit.importers.point import Point, Reading, Suggestion, Verdict
from servefit.importers.rows import to_table
from servefit.importers.settings import Settings, parse_settings

__all__ = [
    "Import",
    "Point",
    "Reading",
    "Settings",
    "Suggestion",
    "Verdict",
    "import_files",
    "parse_settings",
    "to_table",
]
