"""What bounds a job: how much of its time goes into products of matrices, into kernels, and into the rest."""

import os

from torch.profiler import ProfilerActivity, profile

from lavagna.bench.clock import Job

# Above all kinds of messages of torch's profiler.
SILENT = "6"
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "mkldnn::_linear_pointwise")
# Of this package; of an operator with a gradient the time is its backward's declaration's, while it is recorded.
KERNELS = ("lavagna::", "GeneratedBackwardFor_lavagna_")


def spent(job: Job, count: int = 4) -> str:
    """Shares of products, kernels and the rest, then the operators that most of the time is spent in, in a line."""
    # Or it tells stderr when it starts and ends. It looks here once in a process.
    os.environ.setdefault("KINETO_LOG_LEVEL", SILENT)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        job()
    events = sorted(found.key_averages(), key=lambda event: -event.self_cpu_time_total)
    whole = sum(event.self_cpu_time_total for event in events) or 1
    shares = {"products": 0.0, "kernels": 0.0, "rest": 0.0}
    for event in events:
        kind = "products" if event.key in PRODUCTS else "kernels" if event.key.startswith(KERNELS) else "rest"
        shares[kind] += event.self_cpu_time_total / whole
    most = [f"{event.key} {event.self_cpu_time_total / whole:.0%}" for event in events[:count]]
    return f"{', '.join(f'{kind} {share:.0%}' for kind, share in shares.items())}: {', '.join(most)}"
