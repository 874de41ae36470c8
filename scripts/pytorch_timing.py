"""How the scripts that measure PyTorch time a call: as the benches time theirs."""
import torch


def best_ns(work, bursts):
    """Nanoseconds of one call: device time between two events around ten, the best of several bursts."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    work()
    best = float("inf")
    for _ in range(bursts):
        start.record()
        for _ in range(10):
            work()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) * 1e6 / 10)
    return best
