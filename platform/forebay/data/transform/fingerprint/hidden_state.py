"""Names whose results depend on more than their arguments.

Files, the process and its environment, time, random numbers, and code that is found by name at run time.
"""

from __future__ import annotations

import re
import sys
from typing import Literal

from forebay.data.transform.fingerprint.bytecode import Use

Hidden = Literal["files", "state"]

DOORS = frozenset(
    {
        *(
            "__annotations__",
            "__module__",
            "__globals__",
            "__builtins__",
            "__subclasses__",
            "__code__",
            "__closure__",
            "__import__",
            "__loader__",
        ),
        *("f_globals", "f_locals", "f_builtins", "f_back", "gi_frame", "tb_frame", "read_text", "read_bytes"),
    }
)
"""Attributes that lead from any object to files, or to variables by name."""
COMPUTED_NAMES = frozenset({"getattr", "attrgetter", "methodcaller", "vars", "__dict__", "__getattribute__"})

_IN_MEMORY = frozenset({"BytesIO", "StringIO", "BufferReader", "py_buffer"})
_DATES = frozenset({"datetime64", "Timestamp", "to_datetime", "Period"})
_SEEDED = frozenset({"default_rng", "RandomState", "Random"})

# What is left out of a pattern here has results that only its arguments decide.
_OS_PATH = r"(join|basename|dirname|split|splitext|splitdrive|normpath|normcase|isabs|common\w+|\w*sep|\w+dir)"
_FILES = {
    "os": rf"(?!{_OS_PATH}\b|path\.{_OS_PATH}$|path$|fs\w+$|PathLike|name$|devnull$)"
    r"(path\..*|listdir|walk|scandir|stat|open|read\w*|access|lstat|fstat|fdopen|\w*xattr)",
    **dict.fromkeys(("posixpath", "ntpath", "genericpath"), rf"(?!{_OS_PATH}$).*"),
    "pathlib": r"(?!Pure\w+$|Pure\w+\.).*",
    **dict.fromkeys(("io", "_io", "codecs"), r"(open|open_code|FileIO|OpenWrapper)\b.*"),
    **dict.fromkeys(("gzip", "bz2", "lzma", "zipfile", "tarfile", "wave", "_bz2", "_lzma"), r"(open|\w+File)\b.*"),
    **dict.fromkeys(
        ("glob", "fileinput", "shutil", "linecache", "dbm", "sqlite3", "shelve", "mmap", "tempfile"), r".*"
    ),
    **dict.fromkeys(("netrc", "mailbox", "configparser", "zoneinfo._common"), r".*"),
    "xml": r".*\b(parse|iterparse)\b.*",
    **dict.fromkeys(("json", "tomllib", "yaml", "plistlib"), r"(?!)"),
    "numpy": r"(.*\.)?(load\w*|genfromtxt|from(file|regex)|\w*memmap|DataSource)\b.*|ctypeslib.*",
    "pandas": r"(.*\.)?(read_\w+|HDFStore|ExcelFile)\b.*",
    "pyarrow": r"_?(parquet|feather|flight|orc|dataset|fs|hdfs)\b.*|(.*\.)?(read_\w+|open_\w+|open|OSFile|memory_map|"
    r"\w*MemoryMappedFile|create_memory_map|input_stream|PythonFile|CSV\w*Reader|Record\w+Reader)\b.*",
    "torch": r"(.*\.)?(load\w*|from_file|hub|UntypedStorage|\w+Storage)\b.*",
    **dict.fromkeys(("fsspec", "s3fs", "gcsfs", "adlfs", "h5py", "zarr", "netCDF4", "tables", "lmdb", "joblib"), r".*"),
    **dict.fromkeys(("duckdb", "ray", "datasets", "sentencepiece"), r".*"),
}
"""Per top module: what reads files."""
_READERS = re.compile(
    r"(.*\.)?((open|load|read|scan|fetch|download)(_\w+)?|imread\w*|from_?(file|pretrained|csv|parquet|disk)|memmap|"
    r"(load|gen\w*from)txt|loadmat|\w+_from_(file|disk|url))"
)
"""Of all other packages: functions and class methods by whose name one reads files."""
_SYS = (
    r"(maxsize|maxunicode|byteorder|\w+_info|stdout|stderr|getsizeof|intern|implementation|platform|hexversion|version)"
)
_NOTHING = re.compile(r"(?!)")
_STATE = {
    "os": rf"(?!{_OS_PATH}$|path\b|fs\w+$|PathLike|name$|devnull$).*",
    "posix": r".*",
    "sys": rf"(?!{_SYS}(\.|$)).*",
    "time": r"(?!sleep$|struct_time\b).*",
    "datetime": r"(.*\.)?(now|today|utcnow)",
    "random": r".*",
    "_random": r".*",
    "uuid": r"(?!UUID\b|uuid3$|uuid5$|NAMESPACE_|SafeUUID).*",
    "urllib": r"(?!parse\b).*",
    "http": r"(?!HTTPStatus|HTTPMethod).*",
    "pickle": r"(?!dumps$|HIGHEST_PROTOCOL$|DEFAULT_PROTOCOL$|\w*Error$).*",
    "_pickle": r"(?!dumps$|\w*Error$).*",
    **dict.fromkeys(("marshal", "dill", "cloudpickle"), r"(?!dumps$).*"),
    "threading": r"(get_(ident|native_id)|current_thread|main_thread|active_count|enumerate|local)\b.*",
    "types": r"(FunctionType|CodeType|LambdaType|MethodType|FrameType)\b.*",
    "decimal": r"getcontext|DefaultContext|BasicContext|setcontext",
    "gzip": r"compress",
    "typing": r"get_type_hints",
    "contextvars": r".*",
    "operator": r"(?!)",
    **dict.fromkeys(
        ("secrets", "socket", "_socket", "ssl", "select", "selectors", "subprocess", "multiprocessing"), r".*"
    ),
    **dict.fromkeys(("platform", "getpass", "locale", "pwd", "grp", "resource", "gc", "inspect", "ctypes"), r".*"),
    **dict.fromkeys(
        ("importlib", "imp", "pkgutil", "runpy", "zipimport", "code", "codeop", "site", "sysconfig"), r".*"
    ),
    **dict.fromkeys(("ftplib", "smtplib", "imaplib", "poplib", "telnetlib", "xmlrpc", "webbrowser", "signal"), r".*"),
    **dict.fromkeys(("fcntl", "termios", "readline", "cmd", "curses", "atexit", "tracemalloc", "faulthandler"), r".*"),
    "numpy": r"(random\b|geterr|getbufsize|get_printoptions|mtrand).*",
    "pandas": r"(.*\.)?(get_option|options|describe_option|now|today|utcnow|sample)\b.*",
    "pyarrow": r"_?(compute\.)?(call_function|get_function|function_registry|random|list_functions|register_\w+)\b.*|"
    r"(un)?register_extension_type|(cpu_count|io_thread_count)",
    "torch": r"(.*\.)?(rand(?!om_split)\w*|normal|bernoulli|multinomial|poisson|\w*dropout\w*|\w*seed\w*|"
    r"Generator|default_generator|get_(?!default_d)\w+|gumbel_softmax|rrelu\w*|is_grad_enabled|is_inference\w*)\b.*|"
    r"(random|distributed|cuda|nn\.init|nn\.modules|nn\.[A-Z]\w*|backends|ops|_dynamo|compiler)\b.*",
    "scipy": r"(.*\.)?(rvs|random\w*)",
    "sklearn": r"(.*\.)?(get_config|shuffle|resample|check_random_state)",
    "tensorflow": r"random\b.*",
    "cupy": r"random\b.*",
    **dict.fromkeys(
        ("requests", "httpx", "aiohttp", "urllib3", "boto3", "botocore", "redis", "pymongo", "psycopg"), r".*"
    ),
    **dict.fromkeys(("psycopg2", "sqlalchemy", "paramiko", "grpc", "kafka", "psutil", "dotenv"), r".*"),
}
"""Per top module: what depends on the process, its surroundings or its history."""
_PATTERNS: dict[Hidden, dict[str, re.Pattern[str]]] = {
    "files": {top: re.compile(pattern) for top, pattern in _FILES.items()},
    "state": {top: re.compile(pattern) for top, pattern in _STATE.items()},
}


def hidden(path: str, use: Use) -> Hidden | None:
    """Kind of hidden state that the dotted name `path` reaches.

    None if its arguments alone decide. `use` tells a seed, and a file in memory.
    """
    top, _, rest = path.partition(".")
    name = rest.rpartition(".")[2]
    if name in _DATES and set(use.argument) & {"now", "today"}:
        return "state"
    found = _PATTERNS["state"].get(top)
    by_name = _NOTHING if found is not None and top in sys.stdlib_module_names else _READERS
    if rest and _PATTERNS["files"].get(top, by_name).fullmatch(rest):
        return None if _IN_MEMORY.intersection(map(str, use.argument)) else "files"
    if found is None or not rest or not found.fullmatch(rest):
        return None
    is_seeded = name in _SEEDED and len(use.argument) == 1 and type(use.argument[0]) is int
    return None if is_seeded else "state"


def hides_everything(module: str) -> bool:
    """Whether a module as a whole cannot be handed around.

    Anything may be called of it.
    """
    top, _, rest = module.partition(".")
    prefix = f"{rest}." if rest else ""
    return any(
        top in patterns and patterns[top].fullmatch(f"{prefix}any_name_at_all") is not None
        for patterns in _PATTERNS.values()
    )


def has_hidden(module: str) -> bool:
    """Whether a part of `module` has known hidden state."""
    return any(module.partition(".")[0] in patterns for patterns in _PATTERNS.values())
