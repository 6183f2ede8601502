"""The what-if page: a local web page over the functions of `servefit advise`."""
