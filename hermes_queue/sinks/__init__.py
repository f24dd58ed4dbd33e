"""Where results go: one module per destination."""
