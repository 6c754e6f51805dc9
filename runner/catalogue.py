"""`python -m runner.catalogue`: the page of the experiments that come with the runner (`runner/cli/catalogue.py`)."""

from runner.cli.catalogue import markdown
from runner.config.folders import conf_folder

if __name__ == "__main__":
    print(markdown(conf_folder()), end="")
