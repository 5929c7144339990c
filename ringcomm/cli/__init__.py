"""The command line: ``python -m ringcomm bench | demo | run``."""
