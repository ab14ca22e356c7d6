"""In what operators a job's time is spent."""

from torch.profiler import ProfilerActivity, profile

from lavagna.bench.clock import Job


def spent(job: Job, count: int = 4) -> str:
    """The operators that most of a job's time is spent in, each with its share, in a line."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        job()
    events = sorted(found.key_averages(), key=lambda event: -event.self_cpu_time_total)
    whole = sum(event.self_cpu_time_total for event in events) or 1
    return ", ".join(f"{event.key} {event.self_cpu_time_total / whole:.0%}" for event in events[:count])
