"""Runs the cases of tests/cases, which every language's runner runs alike. Their README says what they are made of."""

from case_runner.cases import FOLDER, Failure, check_shape, load
from case_runner.runner import run_case

__all__ = ["FOLDER", "Failure", "check_shape", "load", "run_case"]
