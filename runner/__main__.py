"""`python -m runner` and the console script `shardproof`."""

from runner.invocation import libraries_first

# Before anything else is imported.
libraries_first()

from runner.cli.command import main  # noqa: E402

if __name__ == "__main__":
    main()
