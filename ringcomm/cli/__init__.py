"""The command line: ``python -m ringcomm bench | demo | options | run``."""
