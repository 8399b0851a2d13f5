"""Remove secrets from text of foreign origin: the one place, for everything that is printed, logged or stored.

A store, a catalog, Spark or a library may repeat in an error what it was sent. So every error message and every log
record of l0gc passes through here. This removes the values of variables with secret names, the credentials in use,
secrets registered with `keep_secrets`, and the user and password of any URL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import quote
from weakref import WeakSet

HIDDEN: Final = "***"
_SHORTEST: Final = 8
"""A shorter value may be a word of a message."""
_USER: Final = re.compile(r"//[^/\s]*@")
_SECRET: Final = re.compile(r"(?i)SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL|ACCESS.KEY|API.KEY")
_PLACE: Final = re.compile(r"(?i)(_FILE|_PATH|_URI|_URL|_DIR)$")
_ATTRIBUTES: Final = ("access_key", "secret_key", "token", "_access_key", "_secret_key", "_token")
_values: set[str] = set()
_credentials: WeakSet[object] = WeakSet()


def is_secret(name: str) -> bool:
    """Return whether a setting with this name holds a secret."""
    return _SECRET.search(name) is not None and _PLACE.search(name) is None


def keep_secrets(settings: Mapping[str, object]) -> None:
    """Register the secrets in these settings, which are removed from text from now on."""
    _values.update(_secrets_of(settings))


def keep_secrets_of(credentials: object) -> None:
    """Register the keys and the token of botocore's credentials, including those from later renewals."""
    _credentials.add(credentials)


def without_secrets(text: str) -> str:
    """Return `text` with each secret replaced by `***`."""
    text = _USER.sub(f"//{HIDDEN}@", text)
    for secret in sorted({s.strip() for s in _secrets()}, key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            for form in (secret, quote(secret, safe="", errors="replace")):
                text = text.replace(form, HIDDEN)
    return text


def _secrets_of(settings: Mapping[str, object]) -> Iterator[str]:
    """Yield the secret values, and the user and password of an address, however malformed it is."""
    for name, value in settings.items():
        if isinstance(value, str):
            if is_secret(name):
                yield value
            user, _, password = value.rpartition("@")[0].rpartition("/")[2].partition(":")
            if password:
                yield from (f"{user}:{password}", password)


def _secrets() -> Iterator[str]:
    yield from _values
    yield from _secrets_of(os.environ)
    for credentials in list(_credentials):
        found = vars(credentials)
        yield from (found[name] for name in _ATTRIBUTES if isinstance(found.get(name), str))
