"""`python -m runner` and the console script `shardproof`."""

from runner.cli.command import main

if __name__ == "__main__":
    main()
