"""hvscale: makes data-parallel training over Horovod scale."""


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version  # here, because it takes longer to import than all the rest of a start

    return version("hvscale")
