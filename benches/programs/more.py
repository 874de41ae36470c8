"""Nine more programs of other kinds than those the pool's constants come from.

Each is as in programs.py: a function of the device, of `ready` and of `note`, which is given the losses of
programs that train nothing.
"""

import random
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F


def serve(dev, ready, note):
    """Requests come and go; each has KV caches of its own, which grow by concatenation."""
    width, heads, depth = 512, 8, 6
    linear = lambda a, b: nn.Linear(a, b).to(dev).half()
    layers = [
        (linear(width, 3 * width), linear(width, width), linear(width, 4 * width), linear(4 * width, width))
        for _ in range(depth)
    ]

    def request():
        length = random.randint(16, 700)
        shape = (2, heads, length, width // heads)
        caches = [torch.randn(shape, device=dev, dtype=torch.half) for _ in range(depth)]
        last = torch.randn(1, width, device=dev, dtype=torch.half)
        return [length + random.randint(10, 120), caches, last]

    ready()
    live = []
    with torch.no_grad():
        for _ in range(90):
            while len(live) < random.randint(2, 10):
                live.append(request())
            for one in live:
                x = one[2]
                for at, (qkv, out, up, down) in enumerate(layers):
                    q, k, v = qkv(x).view(3, heads, 1, width // heads)
                    one[1][at] = torch.cat([one[1][at], torch.stack([k, v])], 2)
                    keys, values = one[1][at]
                    y = F.scaled_dot_product_attention(q[None], keys[None], values[None])[0]
                    x = x + out(y.reshape(1, width))
                    x = x + down(F.gelu(up(x))) * 0.1
                one[2] = x / x.norm()
            note(live[0][2].float().sum())
            live = [one for one in live if one[1][0].shape[2] < one[0]]


def bert(dev, ready, note):
    """Encoder training with bf16, lengths vary, gradients accumulated."""
    layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False).to(dev)
    emb, head = nn.Embedding(20000, 768).to(dev), nn.Linear(768, 20000).to(dev)
    params = [*model.parameters(), *emb.parameters(), *head.parameters()]
    opt = torch.optim.AdamW(params, 1e-4)
    ready()
    for _ in range(25):
        for _ in range(2):
            x = torch.randint(0, 20000, (random.randint(4, 48), random.randint(16, 400)), device=dev)
            with torch.autocast("cuda", torch.bfloat16):
                y = head(model(emb(x))[:, ::3])
                loss = F.cross_entropy(y.float().flatten(0, 1), x[:, ::3].flatten())
            loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)


class Block(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, a), nn.SiLU(), nn.Conv2d(a, b, 3, padding=1))
        self.second = nn.Sequential(nn.GroupNorm(8, b), nn.SiLU(), nn.Conv2d(b, b, 3, padding=1))
        self.skip = nn.Conv2d(a, b, 1)

    def forward(self, x):
        return self.second(self.first(x)) + self.skip(x)


class UNet(nn.Module):
    def __init__(self, widths=(64, 128, 256, 512)):
        super().__init__()
        steps = list(zip((widths[0],) + widths, widths))
        self.first = nn.Conv2d(3, widths[0], 3, padding=1)
        self.down = nn.ModuleList([Block(a, b) for a, b in steps])
        self.attention = nn.MultiheadAttention(widths[-1], 8, batch_first=True)
        self.up = nn.ModuleList([Block(2 * b, a) for a, b in reversed(steps)])
        self.last = nn.Conv2d(widths[0], 3, 3, padding=1)

    def forward(self, x):
        x, kept = self.first(x), []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        y = x.flatten(2).transpose(1, 2)
        x = x + self.attention(y, y, y, need_weights=False)[0].transpose(1, 2).view_as(x)
        for block, other in zip(self.up, reversed(kept)):
            x = block(torch.cat([F.interpolate(x, size=other.shape[2:]), other], 1))
        return self.last(x)


def unet(dev, ready, note):
    """Diffusion training, many resolutions, with an average of the weights."""
    model, mean = UNet().to(dev), UNet().to(dev)
    opt = torch.optim.Adam(model.parameters(), 1e-4)
    ready()
    for _ in range(40):
        h, w = (random.choice([32, 48, 64, 80, 96, 128, 160]) for _ in range(2))
        x = torch.randn(random.randint(4, 24), 3, h, w, device=dev)
        t = torch.rand(len(x), 1, 1, 1, device=dev)
        e = torch.randn_like(x)
        with torch.autocast("cuda", torch.bfloat16):
            loss = (model(x * (1 - t) + e * t) - e).float().pow(2).mean()
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        with torch.no_grad():
            for a, b in zip(mean.parameters(), model.parameters()):
                a.lerp_(b, 0.01)


def lstm(dev, ready, note):
    """Sequence to sequence, packed, all lengths."""
    emb, out = nn.Embedding(8000, 512).to(dev), nn.Linear(1536, 8000).to(dev)
    enc = nn.LSTM(512, 768, 2, batch_first=True, bidirectional=True).to(dev)
    dec = nn.LSTM(512, 1536, 1, batch_first=True).to(dev)
    params = [p for m in (emb, enc, dec, out) for p in m.parameters()]
    opt = torch.optim.Adam(params, 1e-3)
    ready()
    for _ in range(40):
        n = random.randint(8, 64)
        lengths = [random.randint(3, 90) for _ in range(n)]
        seqs = [torch.randint(0, 8000, (k,), device=dev) for k in lengths]
        packed = nn.utils.rnn.pack_sequence([emb(s) for s in seqs], enforce_sorted=False)
        _, (h, c) = enc(packed)
        first = tuple(torch.cat([t[-2], t[-1]], 1)[None].contiguous() for t in (h, c))
        target = torch.randint(0, 8000, (n, random.randint(4, 80)), device=dev)
        y, _ = dec(emb(target), first)
        F.cross_entropy(out(y).flatten(0, 1), target.flatten()).backward()
        opt.step()
        opt.zero_grad(set_to_none=True)


def graph(dev, ready, note):
    """Message passing on graphs of all sizes, with sampling."""
    layers = nn.ModuleList([nn.Linear(256, 256) for _ in range(6)]).to(dev)
    opt = torch.optim.Adam(layers.parameters(), 1e-3)
    feats = torch.randn(400000, 256, device=dev)
    ready()
    for _ in range(120):
        n = int(10 ** random.uniform(3, 5.3))
        edges = torch.randint(0, n, (2, n * random.randint(2, 12)), device=dev)
        nodes = torch.randperm(400000, device=dev)[:n]
        keep = torch.rand(edges.shape[1], device=dev) < random.uniform(0.2, 0.9)
        edges = edges[:, keep]
        x = feats[nodes]
        for layer in layers:
            sums = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
            x = F.relu(layer(sums / 8)) + x
            if random.random() < 0.2:
                few = edges.shape[1] < 200_000
                edges = torch.unique(edges, dim=1) if few else edges[:, ::2]
        (x.pow(2).mean() * 1e-6).backward()
        opt.step()
        opt.zero_grad(set_to_none=True)


def ckpt(dev, ready, note):
    """Large activations, recomputed; lengths vary."""
    from torch.utils.checkpoint import checkpoint

    layer = lambda: nn.TransformerEncoderLayer(2048, 16, 8192, 0, batch_first=True, norm_first=True)
    blocks = nn.ModuleList([layer() for _ in range(10)]).to(dev).bfloat16()
    opt = torch.optim.SGD(blocks.parameters(), 1e-3)
    ready()
    for _ in range(25):
        shape = (random.randint(1, 12), random.randint(256, 2500), 2048)
        y = torch.randn(shape, device=dev, dtype=torch.bfloat16, requires_grad=True)
        for b in blocks:
            y = checkpoint(b, y, use_reentrant=False)
        y.float().pow(2).mean().backward()
        opt.step()
        opt.zero_grad(set_to_none=True)


def threads(dev, ready, note):
    """Four threads, each with a stream, serve batches of all sizes by one model."""
    layer = lambda: nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU())
    model = nn.Sequential(*[layer() for _ in range(12)]).to(dev).eval()
    ready()
    sums = [0.0] * 4

    def work(at):
        rng = random.Random(at)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), torch.no_grad():
            total = torch.zeros((), device=dev)
            for _ in range(150):
                shape = (rng.randint(1, 32), 64, rng.randint(16, 96), rng.randint(16, 96))
                x = torch.ones(shape, device=dev)
                total += model(x).mean()
            stream.synchronize()
        sums[at] = float(total)

    for _ in range(3):
        workers = [threading.Thread(target=work, args=(at,)) for at in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        note(torch.tensor(sum(sums)))


def offload(dev, ready, note):
    """Weights of a large model come from the host a layer at a time, on a stream of their own."""
    rows = [random.choice([1024, 2048, 3072]) for _ in range(24)]
    host = [torch.randn(n, 2048, device=dev).half().cpu().pin_memory() for n in rows]
    copy, main = torch.cuda.Stream(), torch.cuda.current_stream()
    ready()
    with torch.no_grad():
        for _ in range(60):
            x = torch.randn(random.randint(100, 8000), 2048, device=dev, dtype=torch.half)
            with torch.cuda.stream(copy):
                ahead = host[0].to(dev, non_blocking=True)
            for at in range(len(host)):
                main.wait_stream(copy)
                w = ahead
                w.record_stream(main)
                if at + 1 < len(host):
                    with torch.cuda.stream(copy):
                        ahead = host[at + 1].to(dev, non_blocking=True)
                x = x + (F.relu(x @ w.T) @ w) * 1e-4
                x = x / x.norm(dim=1, keepdim=True)
            note(x.float().sum())


def copyout(dev, ready, note):
    """What each layer makes is copied to the host beside the layers that follow, and let go of at once."""
    rows = [random.choice([2048, 4096, 6144]) for _ in range(16)]
    weights = [torch.randn(4096, 4096, device=dev, dtype=torch.half) * 0.02 for _ in rows]
    host = [torch.empty(n, 4096, device="cpu", dtype=torch.half, pin_memory=True) for n in rows]
    copy, main = torch.cuda.Stream(), torch.cuda.current_stream()
    ready()
    with torch.no_grad():
        for _ in range(40):
            x = torch.randn(8192, 4096, device=dev, dtype=torch.half)
            for w, kept in zip(weights, host):
                for _ in range(random.randint(1, 4)):
                    x = F.relu(x @ w)
                part = x[: len(kept)].clone()
                copy.wait_stream(main)
                with torch.cuda.stream(copy):
                    kept.copy_(part, non_blocking=True)
                part.record_stream(copy)
                del part
            note(x.float().mean())


MORE = dict(
    serve=serve,
    bert=bert,
    unet=unet,
    lstm=lstm,
    graph=graph,
    ckpt=ckpt,
    threads=threads,
    offload=offload,
    copyout=copyout,
)
