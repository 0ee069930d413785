"""Versions of installed packages, without importing them."""

from __future__ import annotations


def installed_version(package: str) -> str | None:
    """Returns the version of an installed package, None if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None
