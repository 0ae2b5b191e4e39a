"""What becomes of stored runs: shown, exported, imported, compared, drawn and reported. Each verb is a module."""
