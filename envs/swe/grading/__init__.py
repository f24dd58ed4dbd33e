"""Judge an agent's tree by its row's tests."""
