"""Who may import whom, read from the sources: what keeps each part replaceable."""

import ast
from pathlib import Path

import pytest

import collectives

PACKAGE = Path(collectives.__file__).parent
CHECKOUT = Path(__file__).parent.parent
GROUPS = {
    "topology": ["topology.*"],
    "kernels": ["kernels.*"],
    "values": ["dtypes", "rounding", "errors", "settings", "memory", "placement"],
    "schedules": ["step", "schedules", "schedules.*", "symbolic", "verify", "schedule", "tuning"],
    "plans": ["plan", "lowering", "coding", "blocks", "frame"],
    "MPI from compiled code": ["mpi_abi"],
    "executor": ["executor", "transfer", "operands", "mailbox", "execution", "segment",
                 "waiting", "whole_host", "host_execution"],
    "tensors": ["adapters", "adapters.*", "arrays", "containers", "messages"],
    "compression": ["compression", "policies", "error_feedback", "feedback_entry",
                    "feedback_state"],
    "process": ["abort", "launcher", "lifecycle", "info"],
    "calls": ["calls", "check", "stall", "request", "lane", "native", "repeats"],
    "API": ["communicator", "engines", "lanes", "world", "__init__"],
}
# group: groups that it may import, beside itself
MAY_IMPORT = {
    "topology": [],
    "kernels": ["values"],
    "values": [],
    "schedules": ["topology"],
    "plans": ["schedules", "values", "kernels"],
    "MPI from compiled code": ["kernels"],
    "executor": ["plans", "kernels", "values", "MPI from compiled code"],
    "tensors": ["values", "kernels"],
    "compression": ["tensors", "values", "kernels"],
    "process": ["values", "kernels"],
    "calls": ["schedules", "tensors", "compression", "kernels", "values", "process"],
    "API": ["calls", "plans", "schedules", "tensors", "compression", "values", "process",
            "executor", "kernels"],
}
# package of others: modules that may import it
MAY_IMPORT_OTHERS = {
    "mpi4py": ["mpi_abi", "lifecycle", "topology.discover"],
    "numba": ["kernels.*", "mpi_abi", "frame", "executor", "transfer", "operands", "mailbox",
              "waiting", "whole_host"],
    "llvmlite": ["kernels.*", "mpi_abi", "operands"],
    "torch": ["adapters.torch_tensor"],
    "jax": ["adapters.jax_array"],
    "cupy": [],
}
# Beside the public names: the device kernels have no public call until there is a device executor.
BENCHES_MAY_IMPORT = {"gpu_kernels.py": "collectives.kernels"}
READ_ENVIRONMENT = ["settings", "kernels.cache", "lifecycle", "info"]
WRITE_TO_THE_TERMINAL = ["schedule", "info", "abort", "lifecycle"]


def modules():
    """Name inside the package: syntax tree."""
    paths = [*PACKAGE.glob("*.py"), *PACKAGE.glob("*/*.py"), *PACKAGE.glob("*/*/*.py")]
    names = (".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in paths)
    return {name if name == "__init__" else name.removesuffix(".__init__"):
            ast.parse(path.read_text()) for name, path in zip(names, paths, strict=True)}


MODULES = modules()


def imported(nodes):
    """Full dotted names; of `from a import b` both `a` and `a.b`, since b may be a module."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def ours(names):
    """Those that are modules of this package, by their name inside it."""
    inside = {name.removeprefix("collectives.") for name in names}
    return inside & set(MODULES)


def matches(name, patterns):
    return any(name == p or (p.endswith(".*") and name.startswith(p[:-1])) or p == f"{name}.*"
               for p in patterns)


def group_of(name):
    groups = [group for group, patterns in GROUPS.items() if matches(name, patterns)]
    assert len(groups) == 1, f"{name} is in groups {groups}: expected one"
    return groups[0]


def forbidden(name, tree):
    """What module `name` imports of ours and may not."""
    group = group_of(name)
    allowed = {group, *MAY_IMPORT[group]}
    return {other for other in ours(imported(ast.walk(tree))) if group_of(other) not in allowed}


@pytest.mark.parametrize("name", MODULES)
def test_module_imports_what_its_group_may(name):
    assert not forbidden(name, MODULES[name])


@pytest.mark.parametrize("name", MODULES)
def test_frameworks_mpi_and_compilers_stay_in_their_modules(name):
    roots = {other.partition(".")[0] for other in imported(ast.walk(MODULES[name]))}
    wrong = {other for other, where in MAY_IMPORT_OTHERS.items()
             if other in roots and not matches(name, where)}
    assert not wrong


def test_importing_the_package_imports_neither_mpi_nor_a_framework():
    seen, todo = set(), ["__init__"]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += ours(imported(MODULES[name].body))
    at_once = set().union(*(imported(MODULES[name].body) for name in seen))
    roots = {name.partition(".")[0] for name in at_once}
    assert roots.isdisjoint({"mpi4py", "torch", "jax", "cupy"}) and "numpy" in roots


@pytest.mark.parametrize("name", MODULES)
def test_no_wildcard_import_and_no_relative_one(name):
    for node in ast.walk(MODULES[name]):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0 and all(alias.name != "*" for alias in node.names)


@pytest.mark.parametrize("name", MODULES)
def test_the_environment_is_read_in_few_places(name):
    reads = any(isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
                for node in ast.walk(MODULES[name]))
    assert not reads or name in READ_ENVIRONMENT


@pytest.mark.parametrize("name", MODULES)
def test_libraries_do_not_print(name):
    prints = any(isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
                 for node in ast.walk(MODULES[name]))
    assert not prints or name in WRITE_TO_THE_TERMINAL


@pytest.mark.parametrize("path", [*CHECKOUT.glob("bench/*.py"), *CHECKOUT.glob("examples/*.py")],
                         ids=lambda path: f"{path.parent.name}/{path.name}")
def test_benchmarks_and_examples_use_the_public_names(path):
    inside = BENCHES_MAY_IMPORT.get(path.name, "no such package")
    names = {name for name in imported(ast.walk(ast.parse(path.read_text())))
             if name.startswith("collectives.") and not name.startswith(inside)}
    assert not names - {f"collectives.{name}" for name in collectives.__all__}


def test_every_group_says_what_it_may_import_and_groups_form_no_circle():
    assert set(MAY_IMPORT) == set(GROUPS)
    done: list[str] = []
    while len(done) < len(GROUPS):
        ready = [g for g in GROUPS if g not in done and set(MAY_IMPORT[g]) <= set(done)]
        assert ready, f"circle among {set(GROUPS) - set(done)}"
        done += ready


@pytest.mark.parametrize("name, source, wrong", [
    ("plan", "from collectives import executor", {"executor"}),
    ("kernels.reduce", "import collectives.plan", {"plan"}),
    ("schedules.ring", "from collectives.dtypes import itemsize", {"dtypes"}),
    ("verify", "def f():\n    from collectives.kernels.compile import stats", {"kernels.compile"}),
    ("arrays", "from collectives.adapters.leaf import Leaf", set()),
])
def test_checker_rejects(name, source, wrong):
    assert forbidden(name, ast.parse(source)) - {"kernels"} == wrong
