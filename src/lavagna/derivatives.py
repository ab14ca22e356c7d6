"""What torch may be computing besides values and their gradients back."""

import torch


def beyond_backward() -> str | None:
    """The name of what is being computed that operators with a backward pass alone have no rule for, or None."""
    if torch._C._functorch.peek_interpreter_stack() is not None:  # pyright: ignore[reportAttributeAccessIssue]
        return "torch.func"
    return "forward-mode derivatives" if torch.autograd.forward_ad._current_level >= 0 else None
