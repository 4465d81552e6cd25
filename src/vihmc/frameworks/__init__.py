"""Models of other libraries as pure functions; no library is imported before one of its objects comes in."""
