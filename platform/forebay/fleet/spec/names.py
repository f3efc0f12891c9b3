"""Names and texts that Kubernetes accepts."""

from __future__ import annotations

import re

from forebay.fleet.spec.fields import fault

MAX_NAME = 30
MAX_LABEL = 63
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_DNS_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_OBJECT = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_OURS = "FOREBAY_"


def check_dns_label(field_name: str, name: str, most: int = MAX_NAME) -> None:
    """Raise `InvalidJobSpec` for an invalid DNS label.

    RFC 1035 has the rules; `most` is the longest length.
    """
    if len(name) > most:
        raise fault(f"{name!r} has {len(name)} characters. Give at most {most}.", field_name)
    if not _DNS_1035.fullmatch(name):
        raise fault(
            f"{name!r} cannot name an object of Kubernetes. Use lower-case letters, digits and '-', and begin with a "
            "letter.",
            field_name,
        )


def check_object_name(field_name: str, name: str, *, is_namespace: bool = False) -> None:
    """Raise `InvalidJobSpec` for a name that no object of Kubernetes has.

    It may begin with a digit, and only a namespace has no dots. It is also the value of a label.
    """
    if len(name) > MAX_LABEL or not (_DNS_1123 if is_namespace else _OBJECT).fullmatch(name):
        raise fault(
            f"{name!r} is not the name of an object of Kubernetes. Use lower-case letters, digits"
            f"{' and' if is_namespace else ', . and'} '-', at most {MAX_LABEL}.",
            field_name,
        )


def check_text(text: str, *path: str | int) -> None:
    """Raise `InvalidJobSpec` for an unusable text."""
    if "\0" in text:
        raise fault("it has a character of code 0, which no program can be given. Remove it.", *path)


def check_env_name(name: str, table: str) -> None:
    """Raise `InvalidJobSpec` for an unusable variable name.

    Names that Forebay sets are refused too.
    """
    if not _ENV_NAME.fullmatch(name):
        raise fault(f"{name!r} cannot name an environment variable. Use letters, digits and '_'.", table)
    if name.startswith(_OURS):
        raise fault(f"names that begin with {_OURS} are set by Forebay. Choose another name.", table, name)


def check_label(name: str, value: str) -> None:
    """Raise `InvalidJobSpec` for an unusable label.

    Kubernetes refuses it, or it belongs to an operator.
    """
    prefix, slash, short = name.rpartition("/")
    if not _LABEL.fullmatch(short) or (slash and not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", prefix)):
        raise fault(f"{name!r} cannot name a label of Kubernetes.", "labels")
    if prefix.endswith(("forebay.dev", "ray.io", "kubernetes.io", "k8s.io", "volcano.sh")):
        raise fault(f"labels of {prefix} are set by Forebay and its operators. Choose another prefix.", "labels", name)
    if value and not _LABEL.fullmatch(value):
        raise fault(
            f"{value!r} cannot be the value of a label: at most 63 letters, digits, '-', '_', '.'.", "labels", name
        )
