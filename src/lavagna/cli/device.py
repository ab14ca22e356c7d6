"""The device that the user names."""


def checked_device(call: str, name: str | None) -> str | None:
    """The name, if this machine has such a device; None stays None. Raises `ValueError` where it has not."""
    if name is None:
        return None
    import torch

    here = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    if name not in here and not (name == "cuda" and len(here) > 1):
        raise ValueError(f"{call}: --device came as {name!r}, but this machine has {', '.join(here)}.")
    return name
