"""`python -m runner` and the console script `shardproof`."""

from runner.base.invocation import begin, libraries_first

# Before anything else is imported.
begin()
libraries_first()

from runner.app.cli.command import main  # noqa: E402

if __name__ == "__main__":
    main()
