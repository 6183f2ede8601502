"""Performance laws: one file a law, all under the interface of `servefit.laws.base`."""
