"""Code that does not come with the package: the user's modules and plug-ins.

Two things keep it from making a verdict wrong. Its source is part of a result's identity, for it
can change while its name stays (:func:`hash_source`). And it runs :func:`contain`: it can end in
an error, which is told with its place, but it cannot end the process, or come back twice from a
fork. That is care against faults, not a prison: what runs here may do whatever its user may.
"""

from __future__ import annotations

import ast
import ctypes
import hashlib
import importlib
import importlib.util
import os
import signal
import sys
import sysconfig
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from vflsec.errors import ConfigError, VflsecError
from vflsec.runtime.determinism import kept
from vflsec.runtime.out_of_memory import Passing, nothing

T = TypeVar("T")
_OURS = "vflsec"
CHECKOUT = Path(__file__).parents[2].joinpath("pyproject.toml").is_file()
"""Whether vflsec runs from a checkout, whose files change while its version stays."""
TIMEOUT = "took longer than its timeout"
_LONGEST = 1e8  # seconds, three years; the system's clock takes no more than so many
_EXIT = os._exit
_FORKED = 70  # exit code of a process that user code forked and did not end
_PARSING = threading.Lock()
TABLES = "vflsec-tables-"
"""How folders begin that hold tables in memory while an audit runs."""
_base: list[Path] = []  # the folder of the scenario
_known: dict[tuple[str, Path], str] = {}  # modules and their source's hash when first seen


def allow_imports(base: Path) -> None:
    """Let the user's own modules and weights, which lie beside the scenario, be found.

    Those of a scenario whose tables are in memory lie in the working directory.
    """
    _base[:] = [Path.cwd() if base.name.startswith(TABLES) else base.resolve()]
    if str(_base[0]) not in sys.path:
        sys.path.append(str(_base[0]))
    importlib.invalidate_caches()


def find_base() -> Path | None:
    """The folder that :func:`allow_imports` was told last; None before it was."""
    return next(iter(_base), None)


def resolve_path(path: str) -> Path:
    """Where a file of the user's is: a relative path starts from the scenario's folder."""
    return (find_base() or Path()) / path


def hash_files(paths: Iterable[str]) -> str:
    """Hash of what these files of the user's hold, "" if there are none.

    Raises:
        ConfigError: one cannot be read.
    """
    whole, any_ = hashlib.blake2b(digest_size=12), False
    for path in paths:
        place = resolve_path(path)
        try:
            with place.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as why:
            what, remedy = f"weights {path!r} ({place})", "Paths start from the scenario's folder."
            raise ConfigError.unreadable(what, why, remedy) from None
        whole.update(f"{path}\0{found}\0".encode())
        any_ = True
    return whole.hexdigest() if any_ else ""


def hash_source(modules: Iterable[str]) -> str:
    """Hash of the source of these modules and of what they import of the user's own.

    That is: modules of the same package, and all that are not installed, wherever they lie; of
    vflsec's own, those of the same folder. Nothing is imported to find them, so what is imported by
    a name that is computed, or read as data, does not count.

    Args:
        modules: import paths; those of the standard library do not count, and of vflsec only in a
            checkout, for elsewhere the package's version stands for them.

    Returns:
        24 hexadecimal digits, "" if nothing counts.

    Raises:
        ConfigError: a file has changed since this process imported it.
    """
    files: dict[str, Path] = {}
    for module in modules:
        top = module.partition(".")[0]
        if top and top not in sys.stdlib_module_names and (top != _OURS or CHECKOUT):
            _follow(module, files)
    if not files:
        return ""
    whole = hashlib.blake2b(digest_size=12)
    for name, path in sorted(files.items()):
        whole.update(f"{name}\0{_hash(name, path)}\0".encode())
    return whole.hexdigest()


def _follow(module: str, files: dict[str, Path]) -> None:
    top = module.partition(".")[0]
    scope = module.rpartition(".")[0] if top == _OURS else top
    own: dict[str, bool] = {}
    todo = [module]
    while todo:
        name = todo.pop()
        if name in files or not name:
            continue
        if not f"{name}.".startswith(f"{scope}."):
            first = name.partition(".")[0]
            if first not in own:
                own[first] = top != _OURS and _is_own(first)
            if not own[first]:
                continue
        spec = _find(name)
        placed = spec is not None and spec.has_location and spec.origin
        origin = Path(placed) if placed else None
        if spec is not None and origin is None:
            todo.append(name.rpartition(".")[0])  # a folder without __init__.py
        if spec is None or origin is None or not origin.is_file():
            continue
        files[name] = origin
        todo.append(name.rpartition(".")[0])
        package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
        with suppress(OSError):  # importing it says why
            todo += _imports(origin.read_bytes(), package)


def _is_own(top: str) -> bool:
    """Whether a module is the user's: neither of Python, nor of vflsec, nor where pip installs."""
    if top == _OURS or top in sys.stdlib_module_names or (spec := _find(top)) is None:
        return False
    if spec.submodule_search_locations is not None:
        places = [Path(place) for place in spec.submodule_search_locations]
    elif spec.has_location and spec.origin is not None:
        places = [Path(spec.origin)]
    else:
        return False
    folders = [place.parent for place in places]
    # of a user, of `--target`, of another environment: what pip put there says so itself
    usual = sysconfig.get_paths().values()
    return not any(str(f) in usual or any(f.glob("*.dist-info")) for f in folders)


def _find(name: str) -> ModuleSpec | None:
    """Where a module is, found without importing its packages."""
    path: Any = None
    found: ModuleSpec | None = None
    whole = ""
    for part in name.split("."):
        whole = f"{whole}.{part}" if whole else part
        try:
            # by its last part alone: a folder without __init__.py asks for its parent in memory
            found = PathFinder.find_spec(part, path)
            if found is None and path is None:
                found = importlib.util.find_spec(whole)  # an editable install has its own finder
        except (ImportError, ValueError, OSError):
            return None
        if found is None:
            return None
        path = found.submodule_search_locations
        if path is None and whole != name:
            return None
    return found


def parse_source(source: str | bytes, name: str = "<unknown>") -> ast.Module:
    """The syntax tree of a source; one thread at a time, for CPython loses count among several.

    Raises:
        SyntaxError: it is not Python.
    """
    with _PARSING:
        return ast.parse(source, name)


@lru_cache(512)
def _imports(source: bytes, package: str) -> tuple[str, ...]:
    """Everything that a source file may import, absolute; more than it does, never less."""
    try:
        tree = parse_source(source)
    except (SyntaxError, ValueError, RecursionError):
        return ()  # importing it says why
    out: list[str] = []
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            out += [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")
                above = above[: len(above) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            out += [base, *(f"{base}.{a.name}" for a in node.names if a.name != "*")]
    return tuple(out)


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """All statements, without the expressions in them, which are most of a tree."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            todo += getattr(node, field, ())


def _hash(name: str, path: Path) -> str:
    try:
        found = hashlib.blake2b(path.read_bytes(), digest_size=12).hexdigest()
    except OSError as error:
        raise ConfigError.unreadable(path, error) from None
    if _known.setdefault((name, path), found) != found:
        loaded = getattr(sys.modules.get(name), "__file__", None)
        if loaded is not None and Path(loaded) == path:
            raise ConfigError(f"{path}: has changed since it was imported. Start a new process.")
        _known[name, path] = found
    return found


class _Ended(BaseException):
    """``os._exit`` was called."""


class _TimeUp(BaseException):
    """The time limit was reached; no Exception, so that code which catches those ends too."""


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Interrupt what runs after so many seconds.

    Python code is interrupted; a single long call into compiled code is not. What waits is
    interrupted in a main thread on POSIX only.
    """
    if not seconds:
        yield
        return
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "setitimer"
    ):
        with _limited_thread(seconds):
            yield
        return

    def stop(*_: object) -> NoReturn:
        raise _TimeUp

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, min(seconds, _LONGEST), 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _limited_thread(seconds: float) -> Iterator[None]:
    """The same where no signal arrives, by an exception that CPython raises in the thread."""
    throw = ctypes.pythonapi.PyThreadState_SetAsyncExc
    me = ctypes.c_ulong(threading.get_ident())
    lock, over = threading.Lock(), threading.Event()

    def stop() -> None:
        while not over.wait(1.0):  # again, for code that catches it
            with lock:
                if not over.is_set():
                    throw(me, ctypes.py_object(_TimeUp))

    timer = threading.Timer(max(0.0, seconds - 1.0), stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        # What was thrown and has not come must come here. Taken back, by throwing None, CPython
        # would look for it for good: all is slower then, and under a profiler or a debugger
        # nothing goes on.
        while True:
            try:
                with lock:
                    over.set()
                timer.cancel()
                for _ in range(3):  # it comes at the end of a turn
                    pass
                break
            except _TimeUp:
                continue


@contextmanager
def contain(what: str, passing: Passing = nothing, seconds: float = 0.0) -> Iterator[None]:
    """Run code that does not come with the package.

    Args:
        what: what runs, for the message.
        passing: which errors the caller deals with itself.
        seconds: after which it is interrupted; 0 = never.

    Raises:
        ConfigError: it tried to end the process, took too long, or an error came out of a user's
            module or a plug-in; the message has file and line. Errors of vflsec pass as they are.
    """
    pid, real, here, put_back = os.getpid(), os._exit, _folder_now(), kept()
    thread = threading.get_ident()

    def ended(code: int = 0) -> NoReturn:
        # a child process may end; a thread that was left running is not called from here
        if os.getpid() != pid or threading.get_ident() != thread:
            real(code)
        raise _Ended(code)

    os._exit = ended  # type: ignore[assignment]
    try:
        with _limited(seconds):
            yield
    except _TimeUp:
        raise ConfigError(f"{what} {TIMEOUT} of {seconds:g} s.") from None
    except (SystemExit, _Ended) as stop:
        how = "os._exit" if isinstance(stop, _Ended) else "sys.exit"
        code = stop.args[0] if stop.args else ""
        where = find_last_place(stop)
        raise ConfigError(
            f"{where}: {what} called {how}({code}). Code that an audit runs must return, or raise."
        ) from None
    except (VflsecError, KeyboardInterrupt):
        raise
    except BaseException as error:  # one that is no Exception, too
        where = find_place(error)
        if not where or passing(error):
            raise
        text = f"{where}: {what} failed: {describe_error(error)}. Correct that code."
        raise ConfigError(text) from error
    finally:
        if os.getpid() != pid:
            real(_FORKED)
        os._exit = real
        put_back()
        if here and _folder_now() != here:  # relative paths would lead elsewhere
            os.chdir(here)


def _folder_now() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def guard_exit(code: int) -> None:
    """End this process with `code` if ``os._exit`` is called where nobody expects it.

    For a thread that code from elsewhere has left running; :func:`contain` tells calls in place.
    """
    pid = os.getpid()

    def ended(status: int = 0) -> NoReturn:
        if os.getpid() == pid:
            text = f"error: code that vflsec runs called os._exit({status}). No result is given.\n"
            os.write(2, text.encode())
        _EXIT(code if os.getpid() == pid else status)

    os._exit = ended  # type: ignore[assignment]


def seal_exit(code: int) -> None:
    """From now on this process ends with `code`, whatever exit handlers of others call.

    A signal that asks it to end does so at once: there is nothing left to do in order.
    """
    pid = os.getpid()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
    os._exit = lambda status=0: _EXIT(code if os.getpid() == pid else status)  # type: ignore


def find_place(error: BaseException) -> str:
    """``FILE:LINE`` of the code from elsewhere in which this was raised; "" if none took part."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    names = {name for name, _ in _known if name.partition(".")[0] != _OURS}
    places = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in _frames(error.__traceback__)
        if frame.f_globals.get("__name__") in names
    ]
    return places[-1] if places else ""


def describe_error(error: BaseException) -> str:
    """Kind and message of an error on one line of bounded length."""
    try:
        text = " ".join(str(error)[:2000].split())
        text = "".join(c if c.isprintable() else "?" for c in text)
    except Exception:  # of an error that cannot say what it is
        text = ""
    text = text if len(text) < 300 else f"{text[:300]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _frames(trace: TracebackType | None) -> Iterator[tuple[Any, int]]:
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def attempt_call(
    call: Callable[[], T], what: str, seconds: float = 0.0, passing: Passing = nothing
) -> tuple[T | None, str]:
    """What `call` returns, and ""; or None, and what went wrong in one sentence.

    Errors that are `passing` are raised.
    """
    try:
        with contain(what, passing, seconds), warnings.catch_warnings():
            return call(), ""
    except VflsecError as error:
        return None, error.reason
    except Exception as error:
        if passing(error):
            raise
        return None, describe_error(error)


def find_last_place(error: BaseException) -> str:
    """``FILE:LINE`` of the innermost call that is neither here nor in the standard library."""
    skipped = (__file__, sysconfig.get_path("stdlib"), "<")
    places = [
        f"{f.f_code.co_filename}:{line}"
        for f, line in _frames(error.__traceback__)
        if not f.f_code.co_filename.startswith(skipped)
    ]
    return places[-1] if places else "?"
