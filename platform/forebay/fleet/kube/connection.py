"""Connection to an API server: address and credentials.

They come from a kubeconfig or from the pod. The `kubernetes` package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import urlencode

import urllib3

from forebay.errors import InvalidOption
from forebay.runtime.extras import extra_package


@dataclass(frozen=True, slots=True)
class Connection:
    """Client of the `kubernetes` package for one cluster."""

    client: Any

    @property
    def pool(self) -> urllib3.PoolManager:
        """Pool of connections, with the client's certificates."""
        found: urllib3.PoolManager = self.client.rest_client.pool_manager
        return found

    def url(self, path: str, query: Mapping[str, object]) -> str:
        """Address of a request."""
        return f"{self.client.configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")

    def headers(self) -> dict[str, str]:
        """Return the credentials of a request.

        A token that expires is renewed here.
        """
        headers: dict[str, str] = {}
        self.client.update_params_for_auth(headers, [], ["BearerToken"])
        return headers


Connect: TypeAlias = Callable[[], Connection]
"""Function that reads credentials and returns a connection."""


def by_context(context: str | None = None, kubeconfig: str | None = None) -> Connect:
    """Connect by a context of a kubeconfig.

    None: the current context, and the usual kubeconfig. Raises `InvalidOption` without a kubeconfig, for a context that
    it does not have, or without the package.
    """

    def connect() -> Connection:
        config = _config()
        from yaml import YAMLError  # type: ignore[import-untyped]  # noqa: PLC0415 - of the extra

        # The package looks at no types: a file that is being written, or is another one, has any error.
        wrong = (YAMLError, ValueError, TypeError, LookupError, AttributeError)
        try:
            return Connection(config.new_client_from_config(config_file=kubeconfig, context=context))
        except (config.ConfigException, OSError, *wrong) as error:
            raise InvalidOption(
                f"the kubeconfig has no usable context{f' {context!r}' if context else ''} ({error}). Set KUBECONFIG, "
                "or choose one of `kubectl config get-contexts`.",
                context=context,
            ) from error

    return connect


def in_cluster() -> Connection:
    """Connect by the account of the pod.

    Raises `InvalidOption` outside a cluster, or without the package.
    """
    config = _config()
    from kubernetes import client  # noqa: PLC0415 - an extra

    settings = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException as error:
        raise InvalidOption(f"this process runs in no pod with an account ({error}). Give a kubeconfig.") from error
    return Connection(client.ApiClient(settings))


def _config() -> Any:
    with extra_package("kubernetes", "A client of clusters of Kubernetes"):
        from kubernetes import config  # noqa: PLC0415 - an extra
    return config
