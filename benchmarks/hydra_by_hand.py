"""Hydra's own start, the yardstick of `overhead.py` for invalid input: the same files and types, an empty main."""

import sys
from pathlib import Path

import hydra

sys.path.insert(0, str(Path(__file__).parent.parent))

from runner.experiment.config.compose import register

register()


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def main(config):
    """Do nothing."""


main()
