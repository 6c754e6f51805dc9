"""Imports JAX's first imports, and what a job needs besides JAX, so that they are loaded when the job comes."""

from __future__ import annotations

import concurrent.futures
import http.server
import importlib.metadata
import importlib.resources
import multiprocessing.connection

import ml_dtypes
import numpy.ma
import numpy.random
import pygments.lexers

from runner import programs, reference
from runner.derivation import derive
from runner.evidence import counts, groups, hlo, nodes
from runner.experiment import reader
from runner.link import handover, together, wire
from runner.record import files
from runner.sharding import plan, repairs
from runner.why import notation
from runner.worker import announced

LOADED = (
    concurrent.futures, http.server, importlib.metadata, importlib.resources, multiprocessing.connection,
    ml_dtypes, numpy.ma, numpy.random, pygments.lexers, programs, reference, derive, counts, groups, hlo, nodes, reader,
    handover, together, wire, files, plan, repairs, notation, announced,
)  # fmt: skip
