"""`python -m pointsman`."""

from pointsman.cli.main import main

main()
