"""One module a format; `servefit.importers.registry` lists them in the order of asking."""
