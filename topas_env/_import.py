"""Workloads from files and folders of the formats that `topas import` knows, told apart by their content."""
from pathlib import Path
from topas_env._workload import Workload
from topas_env._workload_file import read_workload
__all__ = ["import_workload"]
def import_workload(path: str | Path) -> Workload:
    return read_workload(path)
