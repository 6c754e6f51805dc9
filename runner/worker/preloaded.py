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

from runner.checks import reference
from runner.compiled.evidence import counts, groups, hlo, nodes
from runner.compiled.why import notation
from runner.experiment import reader
from runner.graph.sharding import propagation, repairs
from runner.link import handover, together, wire
from runner.programs import writers
from runner.programs.derivation import derive
from runner.reports.record import writing
from runner.worker import announced

LOADED = (
    concurrent.futures, http.server, importlib.metadata, importlib.resources, multiprocessing.connection,
    ml_dtypes, numpy.ma, numpy.random, pygments.lexers, reference, derive, counts, groups, hlo, nodes, reader,
    handover, together, wire, writing, propagation, repairs, notation, announced, writers,
)  # fmt: skip
