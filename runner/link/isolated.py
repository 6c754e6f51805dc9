"""Runs a module of this package without the current folder on Python's path: `python -P isolated.py runner.worker …`.

`python -m runner.worker` would import a `jax.py` of the folder in which a user starts a command. The package is found
by its own place, since a checkout may be importable from the current folder only.
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from os.path import abspath, dirname
from runpy import run_module


def main() -> None:
    """Run the module that the first argument names, as `python -m` does, with the other arguments."""
    home = dirname(dirname(abspath(__file__)))
    spec = spec_from_file_location("runner", f"{home}/__init__.py", submodule_search_locations=[home])
    assert spec is not None
    assert spec.loader is not None
    sys.modules["runner"] = package = module_from_spec(spec)
    spec.loader.exec_module(package)
    del sys.argv[0]
    run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
