"""Seven programs of yet other kinds, written when the pool was; see more.py.

Nothing in the pool was chosen by them.
"""

import queue
import random
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F


def gnn(dev, ready, note):
    """Neighbours are sampled anew each step; nodes and edges are as many as come."""
    nodes, width = 200_000, 128
    table = torch.randn(nodes, width, device=dev)
    layers = nn.ModuleList([nn.Linear(2 * width, width) for _ in range(3)]).to(dev)
    opt = torch.optim.Adam(layers.parameters(), 1e-3)
    ready()
    for _ in range(120):
        seeds = torch.randint(0, nodes, (random.randint(500, 3000),), device=dev)
        blocks, now = [], seeds
        for fan in (15, 10, 5):
            fan = random.randint(3, fan)
            picked = torch.randint(0, nodes, (now.numel(), fan), device=dev)
            picked[:, 0] = now
            unique, inverse = torch.unique(picked, return_inverse=True)
            blocks.append((now, unique, inverse))
            now = unique
        h = table[now]
        for (dst, unique, inverse), layer in zip(reversed(blocks), layers):
            rows = torch.arange(dst.numel(), device=dev).repeat_interleave(inverse.shape[1])
            summed = torch.zeros(dst.numel(), width, device=dev).index_add(0, rows, h[inverse.flatten()])
            own = h[inverse[:, 0]]
            h = F.relu(layer(torch.cat([own, summed / inverse.shape[1]], 1)))
        loss = h.float().pow(2).mean() + (h.mean() - 1).abs()
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)


def crops(dev, ready, note):
    """Volumes in crops of all sizes, with windows that slide for inference now and then."""

    def block(a, b):
        return nn.Sequential(nn.Conv3d(a, b, 3, padding=1), nn.InstanceNorm3d(b), nn.LeakyReLU())

    down, up = nn.MaxPool3d(2), nn.Upsample(scale_factor=2)
    blocks = [block(1, 16), block(16, 32), down, block(32, 64), up, block(64, 16)]
    net = nn.Sequential(*blocks, nn.Conv3d(16, 3, 1)).to(dev)
    opt = torch.optim.SGD(net.parameters(), 1e-2, momentum=0.9)
    ready()
    for step in range(60):
        shape = [2 * random.randint(16, 48) for _ in range(3)]
        x = torch.randn(random.randint(1, 3), 1, *shape, device=dev)
        y = torch.randint(0, 3, (x.shape[0], *shape), device=dev)
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        if step % 10 == 9:
            with torch.no_grad():
                volume = torch.randn(1, 1, *[2 * random.randint(50, 90) for _ in range(3)], device=dev)
                out = torch.zeros(1, 3, *volume.shape[2:], device=dev)
                for at in range(0, volume.shape[2] - 32, 32):
                    out[:, :, at : at + 48] += net(volume[:, :, at : at + 48])
                note(out.softmax(1).mean())


def sharded(dev, ready, note):
    """Weights in shards: a stream ahead of the other puts each layer's together, which goes after its use."""
    width, depth, parts = 2048, 12, 8
    shard = lambda: (torch.randn(4 * width * width // parts, device=dev) * 0.01).half()
    shards = [[shard() for _ in range(parts)] for _ in range(2 * depth)]
    ahead, main = torch.cuda.Stream(), torch.cuda.current_stream()
    ready()

    def gather(at):
        with torch.cuda.stream(ahead):
            whole = torch.cat(shards[at])
        return whole

    for _ in range(40):
        x = torch.randn(random.randint(256, 6000), width, device=dev, dtype=torch.half)
        order = [*range(2 * depth), *reversed(range(2 * depth))]
        coming = [gather(order[0]), gather(order[1])]
        for at, layer in enumerate(order):
            main.wait_stream(ahead)
            whole = coming.pop(0)
            whole.record_stream(main)
            if at + 2 < len(order):
                coming.append(gather(order[at + 2]))
            w = whole.view(4 * width, width) if at % 2 == 0 else whole.view(width, 4 * width)
            x = F.gelu(x @ w.T)
            if at % 2:
                x = x / (x.float().norm(dim=1, keepdim=True) + 1e-3).half()
            del whole, w
        note(x.float().sum())


class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, at):
        made = torch.Generator().manual_seed(at)
        return torch.randn(3, 96, 96, generator=made), at % 10


def gathered(batch):
    size = 64 + 8 * (batch[0][1] % 5)
    x = torch.stack([it[0][:, :size, :size] for it in batch])
    return x.contiguous(), torch.tensor([it[1] for it in batch])


def loader(dev, ready, note):
    """Batches of forked processes, page-locked by a thread, copied on a stream of their own."""
    steps = [(3, 64), (64, 128), (128, 256)]
    blocks = [layer for a, b in steps for layer in (nn.Conv2d(a, b, 3, 2, 1), nn.ReLU())]
    net = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)).to(dev)
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    copy, main = torch.cuda.Stream(), torch.cuda.current_stream()
    ready()
    torch.set_default_device("cpu")
    for _ in range(2):
        order = torch.utils.data.SequentialSampler(Pictures())
        asked = dict(sampler=order, num_workers=4, pin_memory=True, collate_fn=gathered)
        batches = torch.utils.data.DataLoader(Pictures(), 48, **asked)
        for x, y in batches:
            with torch.cuda.stream(copy):
                x, y = x.to(dev, non_blocking=True), y.to(dev, non_blocking=True)
            main.wait_stream(copy)
            x.record_stream(main)
            y.record_stream(main)
            with torch.autocast("cuda", torch.float16):
                loss = F.cross_entropy(net(x).float(), y)
            loss.backward()
            opt.step()
            opt.zero_grad(set_to_none=True)


def beams(dev, ready, note):
    """Beam search: caches are put in another order each step, beams end and others begin."""
    width, heads, depth, vocab = 512, 8, 6, 8000
    linear = lambda a, b: nn.Linear(a, b).to(dev).half()
    layers = [
        (linear(width, 3 * width), linear(width, width), linear(width, 2 * width), linear(2 * width, width))
        for _ in range(depth)
    ]
    table = torch.randn(vocab, width, device=dev, dtype=torch.half) * 0.1
    ready()
    with torch.no_grad():
        for _ in range(6):
            batch, wide = random.randint(2, 24), random.choice([4, 6, 8])
            shape = (2, batch * wide, heads, 8, width // heads)
            caches = [torch.zeros(shape, device=dev, dtype=torch.half) for _ in range(depth)]
            tokens = torch.randint(0, vocab, (batch * wide,), device=dev)
            scores = torch.zeros(batch, wide, device=dev)
            for step in range(random.randint(30, 140)):
                x = table[tokens]
                for at, (qkv, out, up, down) in enumerate(layers):
                    q, k, v = qkv(x).view(-1, 3, heads, 1, width // heads).unbind(1)
                    caches[at] = torch.cat([caches[at], torch.stack([k, v])], 3)
                    y = F.scaled_dot_product_attention(q, caches[at][0], caches[at][1])
                    x = x + out(y.reshape(-1, width))
                    x = x + down(F.gelu(up(x))) * 0.1
                logits = (x / (x.float().norm(dim=1, keepdim=True).half() + 1)) @ table.T
                every = scores.flatten()[:, None] + logits.float().log_softmax(-1)
                scores, best = every.view(batch, -1).topk(wide, 1)
                scores = scores / 2
                source = (best // vocab + wide * torch.arange(batch, device=dev)[:, None]).flatten()
                tokens = (best % vocab).flatten()
                caches = [cache.index_select(1, source) for cache in caches]
            note(scores.sum())


def gan(dev, ready, note):
    """Two networks against each other, gradients of gradients, at growing resolutions."""

    def made(a, b, up):
        size = nn.Upsample(scale_factor=2) if up else nn.AvgPool2d(2)
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.LeakyReLU(0.2), size)

    g = nn.ModuleList([made(128, 128, True) for _ in range(5)]).to(dev)
    rgb = nn.Conv2d(128, 3, 1).to(dev)
    d = nn.ModuleList([made(64, 64, False) for _ in range(5)]).to(dev)
    first, last = nn.Conv2d(3, 64, 1).to(dev), nn.Linear(64, 1).to(dev)
    og = torch.optim.Adam([*g.parameters(), *rgb.parameters()], 1e-4)
    od = torch.optim.Adam([*d.parameters(), *first.parameters(), *last.parameters()], 1e-4)
    fake = lambda n, depth: rgb(nn.Sequential(*g[:depth])(torch.randn(n, 128, 4, 4, device=dev)))
    judge = lambda x, depth: last(nn.Sequential(*d[:depth])(first(x)).mean((2, 3)))
    ready()
    for step in range(120):
        depth = 2 + step // 40 + random.randint(0, 1)
        n = random.randint(8, 48)
        real = torch.randn(n, 3, 4 << depth, 4 << depth, device=dev, requires_grad=True)
        score = judge(real, depth)
        (grad,) = torch.autograd.grad(score.sum(), real, create_graph=True)
        loss = F.softplus(judge(fake(n, depth).detach(), depth)).mean() + F.softplus(-score).mean()
        (loss + grad.pow(2).sum((1, 2, 3)).mean()).backward()
        od.step()
        od.zero_grad(set_to_none=True)
        F.softplus(-judge(fake(n, depth), depth)).mean().backward()
        og.step()
        og.zero_grad(set_to_none=True)
        od.zero_grad(set_to_none=True)


def handed(dev, ready, note):
    """Threads make tensors on streams of their own, and hand them on to others, which free them."""
    first, second = queue.Queue(8), queue.Queue(8)
    sums = []
    ready()

    def make():
        draws, stream = random.Random(1), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(600):
                x = torch.full((draws.randint(1000, 900_000),), 1.5, device=dev)
                event = torch.cuda.Event()
                event.record(stream)
                first.put((x, event))
        first.put(None)

    def change():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            while (it := first.get()) is not None:
                x, event = it
                stream.wait_event(event)
                x.record_stream(stream)
                y = (x[:, None] * torch.arange(3, device=dev)).sum(1)
                event = torch.cuda.Event()
                event.record(stream)
                second.put((y, event))
                del x, it
        second.put(None)

    def use():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            while (it := second.get()) is not None:
                y, event = it
                stream.wait_event(event)
                y.record_stream(stream)
                sums.append(y.double().mean())
                del y, it

    threads = [threading.Thread(target=it) for it in (make, change, use)]
    for it in threads:
        it.start()
    for it in threads:
        it.join()
    torch.cuda.synchronize()
    for one in sums:
        note(one)


OTHER = dict(gnn=gnn, crops=crops, sharded=sharded, loader=loader, beams=beams, gan=gan, handed=handed)
