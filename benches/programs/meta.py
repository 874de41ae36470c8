#!/usr/bin/env python3
"""Records what PyTorch programs ask of an allocator, without a GPU and without their memory.

    benches/programs/meta.py FOLDER [PROGRAM...]
    warpool replay FOLDER/*.csv.gz --device host --verify off

Each program runs on PyTorch's meta device: every operation gives tensors of the right shapes, and computes
nothing. A trace has what operations return and when the last tensor of it is gone, in the columns of RMM's log.
It has no workspaces inside an operation, and attention is the plain one, with its matrices of scores. So it is
like the program's trace on a GPU, but not equal to it.

`Recorder` records any code that makes its tensors on the meta device. Those of more.py that read no result are
recorded too, without the lower precision, which PyTorch leaves out where there is no GPU.
"""

import gzip
import pathlib
import random
import sys
import weakref
from unittest import mock

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import more

ROUNDED = 512


class Recorder(TorchDispatchMode):
    """Notes each storage that an operation makes, and when it is gone."""

    def __init__(self):
        super().__init__()
        self.events = []
        self.known = {}

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                self.note(tensor.untyped_storage())
        return result

    def note(self, storage):
        key, size = storage._cdata, -(-storage.nbytes() // ROUNDED) * ROUNDED
        if size == 0 or key in self.known:
            return
        number = len(self.events)
        self.events.append(("allocate", number, size))

        def gone():
            del self.known[key]
            self.events.append(("free", number, size))

        self.known[key] = weakref.finalize(storage, gone)
        self.known[key].atexit = False

    def save(self, path):
        with gzip.open(path, "wt") as file:
            file.write("Thread,Time,Action,Pointer,Size,Stream\n")
            for at, (action, number, size) in enumerate(self.events):
                file.write(f"0,{at},{action},{number},{size},0\n")


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.inner, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.inner(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        weights = F.dropout((q @ k.transpose(-1, -2) * 0.1).softmax(-1), 0.1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = Attention(width, heads)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.wide(self.norms[1](x))


def step(optimiser):
    # It counts its steps and reads the counts, so those are made on the host.
    with torch.device("cpu"):
        optimiser.step()
    optimiser.zero_grad()


def train(model, batches, loss):
    optimiser = torch.optim.AdamW(model.parameters())
    for batch in batches:
        loss(*batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        step(optimiser)


def some(low, high):
    return random.randint(low, high)


def indices(*shape):
    return torch.empty(*shape, dtype=torch.long)


def images():
    """A vision transformer, images of all sizes."""
    model = nn.ModuleList([nn.Conv2d(3, 768, 16, 16), *(Block(768, 12) for _ in range(12)), nn.Linear(768, 1000)])

    def loss(batch, height, width):
        x = model[0](torch.empty(batch, 3, 16 * height, 16 * width)).flatten(2).transpose(1, 2)
        for block in model[1:-1]:
            x = block(x)
        return F.cross_entropy(model[-1](x.mean(1)), indices(batch))

    train(model, [(some(4, 24), some(8, 24), some(8, 24)) for _ in range(60)], loss)


def translation():
    """An encoder and a decoder with recomputed activations, lengths that vary, a large vocabulary."""

    class Crossed(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.norm, self.crossed = Block(768, 12), nn.LayerNorm(768), Attention(768, 12)

        def forward(self, x, memory):
            x = self.block(x)
            return x + self.crossed(torch.cat([self.norm(x), memory], 1))[:, : x.shape[1]]

    words, out = nn.Embedding(32000, 768), nn.Linear(768, 32000, bias=False)
    encoder = nn.ModuleList([Block(768, 12) for _ in range(10)])
    decoder = nn.ModuleList([Crossed() for _ in range(10)])
    again = dict(use_reentrant=True, preserve_rng_state=False)

    def loss(batch, there, here):
        x, y = words(indices(batch, there)), words(indices(batch, here))
        for block in encoder:
            x = checkpoint(block, x, **again)
        for block in decoder:
            y = checkpoint(block, y, x, **again)
        return F.cross_entropy(out(y).flatten(0, 1), indices(batch * here))

    batches = [(some(2, 8), some(60, 500), some(20, 200)) for _ in range(50)]
    train(nn.ModuleList([words, out, encoder, decoder]), batches, loss)


def adapters():
    """Low-rank adapters on frozen bf16 weights, long sequences, recomputed activations."""
    width, depth = 2048, 16
    half = dict(dtype=torch.bfloat16)
    shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    frozen = [[torch.empty(shape, **half) for shape in shapes] for _ in range(depth)]
    ranks = lambda a, b: nn.Parameter(torch.empty(a, b))
    down = nn.ParameterList([ranks(width, 16) for _ in range(2 * depth)])
    up = nn.ParameterList([ranks(16, width if at % 2 else 3 * width) for at in range(2 * depth)])

    def adapted(x, weight, at):
        return x @ weight + (x.float() @ down[at] @ up[at]).to(x.dtype)

    def layer(x, at):
        q, k, v = adapted(F.layer_norm(x, (width,)), frozen[at][0], 2 * at).chunk(3, -1)
        x = x + adapted(q + k + v, frozen[at][1], 2 * at + 1)
        return x + F.silu(F.layer_norm(x, (width,)) @ frozen[at][2]) @ frozen[at][3]

    def loss(batch, length):
        x = torch.empty(batch, length, width, **half).requires_grad_()
        for at in range(depth):
            x = checkpoint(layer, x, at, use_reentrant=False, preserve_rng_state=False)
        return x.float().square().mean()

    train(nn.ModuleList([down, up]), [(some(1, 4), some(200, 4000)) for _ in range(60)], loss)


def graphs():
    """Sampled neighbourhoods of one large graph."""
    layers = nn.ModuleList([nn.Linear(256, 256) for _ in range(4)])
    features = torch.empty(400_000, 256)

    def loss(nodes, edges):
        x = features.index_select(0, indices(nodes))
        for layer in layers:
            sent = x.index_select(0, indices(edges)) * torch.empty(edges, 1)
            received = torch.zeros(nodes, 256).index_add(0, indices(edges), sent)
            x = F.relu(layer(received) + x[:nodes])
            nodes, edges = max(nodes * 3 // 5, 64), edges * 3 // 5
        return x.square().mean()

    train(layers, [(some(5_000, 120_000), some(50_000, 900_000)) for _ in range(150)], loss)


@torch.no_grad()
def beams():
    """Beam search: caches grow by concatenation, and are reordered at every step."""
    width, depth = 1024, 12
    blocks = [Block(width, 16) for _ in range(depth)]
    words = torch.empty(32000, width)
    for _ in range(40):
        beams, prompt = some(1, 6) * random.choice([4, 8, 16]), some(5, 200)
        caches = [[torch.empty(beams, prompt, width) for _ in "kv"] for _ in range(depth)]
        for _ in range(some(10, 120)):
            x = torch.empty(beams, 1, width)
            for at, block in enumerate(blocks):
                q, *new = block.attention.inner(x).chunk(3, -1)
                caches[at] = [torch.cat(pair, 1) for pair in zip(caches[at], new)]
                k, v = caches[at]
                x = x + block.attention.out((q @ k.transpose(1, 2)).softmax(-1) @ v)
                x = x + block.wide(x)
            (x @ words.t()).log_softmax(-1).topk(8)
            caches = [[part.index_select(0, indices(beams)) for part in pair] for pair in caches]


@torch.no_grad()
def columns():
    """Columns of all sizes are sorted, selected and joined; forty results are kept."""
    kept = {}
    for _ in range(1500):
        rows = int(10 ** random.uniform(3, 7))
        values, keys = torch.empty(rows), indices(rows)
        grouped = values.index_select(0, torch.sort(keys)[1])
        _ = grouped.cumsum(0) > 0
        chosen = grouped.index_select(0, indices(int(rows * random.uniform(0.05, 0.9))))
        joined = torch.cat([chosen, torch.empty(int(len(chosen) * random.random()) + 1)])
        kept[random.randrange(40)] = joined * 2
        if random.random() < 0.1:
            torch.cat(list(kept.values()))


def rays():
    """A radiance field: rays in chunks of all sizes."""
    layers = [part for at in range(8) for part in (nn.Linear(256 if at else 63, 256), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(256, 4))

    def loss(*chunks):
        total = 0
        for rays in chunks:
            x = model(torch.empty(rays * 64, 63))
            alpha = 1 - torch.exp(-F.relu(x[:, 3]).view(rays, 64))
            weights = alpha * torch.cumprod(1 - alpha + 1e-10, 1)
            total = total + (weights.unsqueeze(-1) * x[:, :3].view(rays, 64, 3)).sum(1).square().mean()
        return total

    train(model, [[some(300, 6000) for _ in range(some(1, 4))] for _ in range(250)], loss)


def experts():
    """A mixture of experts, tokens routed unevenly."""
    width, count, depth = 1024, 16, 6
    expert = lambda: nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
    experts = nn.ModuleList([nn.ModuleList([expert() for _ in range(count)]) for _ in range(depth)])
    blocks = nn.ModuleList([Block(width, 16) for _ in range(depth)])

    def loss(batch, length):
        x = torch.empty(batch, length, width).requires_grad_()
        for block, routed in zip(blocks, experts):
            x = block(x)
            flat = x.reshape(-1, width)
            shares = [random.random() ** 3 for _ in range(count)]
            out = torch.zeros_like(flat)
            for share, one in zip(shares, routed):
                tokens = max(1, int(2 * len(flat) * share / sum(shares)))
                y = one(flat.index_select(0, indices(tokens)))
                out = out.index_add(0, indices(tokens), y * torch.empty(tokens, 1))
            x = x + out.view_as(x)
        return x.square().mean()

    train(nn.ModuleList([blocks, experts]), [(some(4, 12), some(100, 700)) for _ in range(30)], loss)


def speech():
    """Sound of all lengths: convolutions, a transformer, a recurrent decoder."""
    convolved = lambda inner: (nn.Conv1d(inner, 512, 3, 2, 1), nn.GELU())
    front = nn.Sequential(*convolved(80), *convolved(512))
    blocks = nn.ModuleList([Block(512, 8) for _ in range(8)])
    cell, out = nn.LSTMCell(512, 512), nn.Linear(512, 5000)

    def loss(batch, frames, letters):
        x = front(torch.empty(batch, 80, frames)).transpose(1, 2)
        for block in blocks:
            x = block(x)
        state, outputs = (torch.empty(batch, 512), torch.empty(batch, 512)), []
        for at in range(letters):
            state = cell(x[:, at % x.shape[1]], state)
            outputs.append(state[0])
        return out(torch.stack(outputs, 1)).log_softmax(-1).mean()

    batches = [(some(4, 16), some(300, 3000), some(10, 120)) for _ in range(60)]
    train(nn.ModuleList([front, blocks, cell, out]), batches, loss)


def rivals():
    """A generator and a discriminator in turns, whose images grow."""
    widths = [512, 512, 256, 128, 64, 32]
    pairs = list(zip(widths, widths[1:]))
    grow = lambda a, b: nn.Sequential(
        nn.Upsample(scale_factor=2), nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)
    )
    shrink = lambda a, b: nn.Sequential(nn.Conv2d(b, a, 3, 2, 1), nn.LeakyReLU(0.2))
    up, out = nn.ModuleList([grow(a, b) for a, b in pairs]), nn.ModuleList([nn.Conv2d(b, 3, 1) for _, b in pairs])
    down, into = nn.ModuleList([shrink(a, b) for a, b in pairs]), nn.ModuleList([nn.Conv2d(3, b, 1) for _, b in pairs])
    last = nn.Linear(512, 1)
    makes = torch.optim.Adam([*up.parameters(), *out.parameters()])
    judges = torch.optim.Adam([*down.parameters(), *into.parameters(), *last.parameters()])

    def made(batch, depth):
        x = torch.empty(batch, 512, 4, 4)
        for layer in up[:depth]:
            x = layer(x)
        return out[depth - 1](x).tanh()

    def judged(x, depth):
        x = into[depth - 1](x)
        for layer in reversed(down[:depth]):
            x = layer(x)
        return last(x.mean((2, 3)))

    for at in range(150):
        depth, batch = 1 + min(4, at // 25), some(8, 64)
        with torch.no_grad():
            fake = made(batch, depth)
        real = torch.empty_like(fake)
        (F.softplus(judged(fake, depth)).mean() + F.softplus(-judged(real, depth)).mean()).backward()
        step(judges)
        F.softplus(-judged(made(batch, depth), depth)).mean().backward()
        step(makes)
        judges.zero_grad()


def splats():
    """Gaussians seen from all sides, split and pruned every twenty steps with their optimiser's states."""
    count = 200_000
    params = [torch.empty(count, width).requires_grad_() for width in (3, 3, 4, 1, 48)]
    optimiser = torch.optim.Adam(params)

    def resized(tensor, before, now):
        kept = tensor.detach()[indices(min(now, before))]
        return torch.cat([kept, torch.zeros(now - before, tensor.shape[1])]) if now > before else kept

    for at in range(300):
        seen, height, width = int(count * random.uniform(0.2, 0.8)), some(400, 800), some(600, 1200)
        chosen = indices(seen)
        parts = [param[chosen] for param in params]
        spread = parts[1].exp()[:, :, None] * torch.empty(seen, 3, 3)
        spread = spread @ spread.transpose(1, 2)
        colour = (parts[4].view(-1, 16, 3) * torch.empty(seen, 16, 1)).sum(1).clamp(0)
        tiles = int(seen * random.uniform(3, 8))
        keys, order = indices(tiles).sort()
        weight = spread.flatten(1)[indices(tiles)].mean(1, keepdim=True).sigmoid()
        image = torch.zeros(height * width, 3).index_add(0, indices(tiles), colour[indices(tiles)] * weight)
        (image - torch.empty(height * width, 3)).abs().mean().backward()
        step(optimiser)
        if at % 20 == 19:
            now = int(count * random.uniform(0.9, 1.25))
            for place, param in enumerate(params):
                params[place] = resized(param, count, now).requires_grad_()
                if state := optimiser.state.pop(param, None):
                    for name in ("exp_avg", "exp_avg_sq"):
                        state[name] = resized(state[name], count, now)
                    optimiser.state[params[place]] = state
            optimiser.param_groups[0]["params"], count = list(params), now


def requests():
    """A language model serves requests that come and go; their caches double when they are full."""
    width, heads, depth = 1024, 16, 8
    half = dict(dtype=torch.half)
    shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    layers = [[torch.empty(shape, **half) for shape in shapes] for _ in range(depth)]
    words, live = torch.empty(32000, width, **half), []

    def cache(length):
        return torch.empty(2, 1 << max(6, (length - 1).bit_length()), heads, width // heads, **half)

    def begin(length):
        x, caches = words[indices(length)], []
        for inner, out, wide, narrow in layers:
            q, k, v = (x @ inner).view(length, 3, heads, -1).unbind(1)
            caches.append(cache(length))
            weights = (q.transpose(0, 1) @ k.permute(1, 2, 0)).softmax(-1)
            x = x + (weights @ v.transpose(0, 1)).transpose(0, 1).reshape(length, width) @ out
            x = x + F.silu(x @ wide) @ narrow
        return [length, caches, length + some(5, 300)]

    with torch.no_grad():
        for _ in range(400):
            while len(live) < some(4, 16):
                live.append(begin(some(20, 1500)))
            x = words[indices(len(live))]
            for at, (inner, out, wide, narrow) in enumerate(layers):
                q, attended = (x @ inner)[:, :width], []
                for place, (length, caches, _) in enumerate(live):
                    if length + 1 > caches[at].shape[1]:
                        caches[at] = cache(length + 1)
                    keys, values = caches[at][:, : length + 1]
                    weights = (q[place].view(heads, 1, -1) @ keys.permute(1, 2, 0)).softmax(-1)
                    attended.append((weights @ values.transpose(0, 1)).reshape(1, width))
                x = x + torch.cat(attended) @ out
                x = x + F.silu(x @ wide) @ narrow
            (x @ words.T).float().softmax(-1).argmax(-1)
            for one in live:
                one[0] += 1
            live = [one for one in live if one[0] < one[2]]


def clips():
    """Clips of many lengths and sizes through convolutions in space and attention over time."""
    widths = [3, 32, 64, 128, 256]
    layer = lambda a, b: nn.Sequential(nn.Conv3d(a, b, 3, (1, 2, 2), 1), nn.GroupNorm(8, b), nn.SiLU())
    layers = nn.Sequential(*[layer(a, b) for a, b in zip(widths, widths[1:])])
    over_time, head = Block(256, 8), nn.Linear(256, 400)

    def loss(batch, length, height, width):
        x = layers(torch.empty(batch, 3, length, 16 * height, 16 * width)).mean((3, 4)).transpose(1, 2)
        return F.cross_entropy(head(over_time(x).mean(1)), indices(batch))

    shapes = [(some(1, 6), some(8, 64), some(6, 14), some(6, 14)) for _ in range(120)]
    train(nn.ModuleList([layers, over_time, head]), shapes, loss)


def shards():
    """Each layer's weights are put together of shards before their use and let go of after it."""
    width, depth = 1536, 20
    half = dict(dtype=torch.bfloat16)
    sizes = [width * width * random.choice([4, 8, 12]) for _ in range(depth)]
    own = [torch.empty(size // 8, **half) for size in sizes]
    master, momentum = ([torch.empty(size // 8) for size in sizes] for _ in range(2))
    whole = lambda at: torch.empty(sizes[at], **half).view(width, -1)

    def forward(x, at):
        weights = whole(at)
        return x + F.gelu(x @ weights) @ weights.T

    def backward(x, gradient, at):
        weights = whole(at)
        hidden, above = F.gelu(x @ weights), gradient @ weights
        of_weights = (hidden.T @ gradient).T + x.T @ above
        reduced = torch.empty(sizes[at] // 8, **half).copy_(of_weights.reshape(-1)[: sizes[at] // 8])
        return gradient + above @ weights.T, reduced

    with torch.no_grad():
        for _ in range(60):
            x, inputs = torch.empty(some(500, 9000), width, **half), []
            for at in range(depth):
                inputs.append(x)
                x = forward(x, at)
            gradient, reduced = torch.empty_like(x), [None] * depth
            for at in reversed(range(depth)):
                gradient, reduced[at] = backward(inputs.pop(), gradient, at)
            for at in range(depth):
                momentum[at].mul_(0.9).add_(reduced[at].float())
                master[at].sub_(momentum[at])
                own[at], reduced[at] = master[at].bfloat16(), None


def waves():
    """Sounds made of spectra, judged at three rates; clips of all lengths."""
    rates = ((256, 128, 8), (128, 64, 8), (64, 32, 4))
    up = nn.ModuleList([nn.ConvTranspose1d(a, b, 2 * rate, rate, rate // 2) for a, b, rate in rates])
    beside = nn.ModuleList([nn.Conv1d(b, b, 3, padding=1) for _, b, _ in rates for _ in range(3)])
    last, pairs = nn.Conv1d(32, 1, 7, padding=3), ((1, 32), (32, 128), (128, 256))
    judges = nn.ModuleList([nn.ModuleList([nn.Conv1d(a, b, 15, 4, 7) for a, b in pairs]) for _ in range(3)])

    def loss(batch, length):
        x, total = torch.empty(batch, 256, length), 0
        for at, layer in enumerate(up):
            x = layer(F.leaky_relu(x))
            for other in beside[3 * at : 3 * at + 3]:
                x = x + other(F.leaky_relu(x))
        sound = last(x).tanh()
        for rate, layers in enumerate(judges):
            y = F.avg_pool1d(sound, 2**rate)
            for layer in layers:
                y = F.leaky_relu(layer(y))
                total = total + y.abs().mean()
        return total

    train(nn.ModuleList([up, beside, last, judges]), [(some(4, 32), some(20, 200)) for _ in range(100)], loss)


def clouds():
    """Clouds of points of all sizes, with neighbours by distance, sampled down."""
    shapes = ((6, 64), (67, 128), (131, 256), (259, 512))
    layers = nn.ModuleList([nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, b)) for a, b in shapes])
    head = nn.Linear(512, 40)

    def loss(batch, count):
        places, x = torch.empty(batch, count, 3), torch.empty(batch, count, 3)
        for layer in layers:
            few = places[:, : max(16, places.shape[1] // some(2, 4))]
            torch.cdist(few, places).topk(16, -1, largest=False)
            around = torch.empty(batch, few.shape[1], 16, x.shape[2] + 3) + 0 * x.mean()
            x, places = layer(around).max(2)[0], few
        return F.cross_entropy(head(x.max(1)[0]), indices(batch))

    train(nn.ModuleList([layers, head]), [(some(2, 32), some(256, 6000)) for _ in range(150)], loss)


def population():
    """Ten models of other widths are trained in turns; the worst of each round is replaced."""

    def model():
        width = some(200, 4000)
        shapes = [(784, width), (width, width), (width, width // 2)]
        layers = [layer for a, b in shapes for layer in (nn.Linear(a, b), nn.ReLU())]
        it = nn.Sequential(*layers, nn.Linear(width // 2, 10))
        return it, torch.optim.Adam(it.parameters())

    models = [model() for _ in range(10)]
    for _ in range(40):
        for it, optimiser in models:
            for _ in range(some(2, 5)):
                x = torch.empty(some(100, 4000), 784)
                F.cross_entropy(it(x), indices(len(x))).backward()
                step(optimiser)
            with torch.no_grad():
                it(torch.empty(10000, 784)).argmax(-1)
        models[some(0, 9)] = model()


PROGRAMS = [images, translation, adapters, graphs, beams, columns, rays, experts, speech]
PROGRAMS += [rivals, splats, requests, clips, shards, waves, clouds, population]


def of_a_gpu(program):
    """A program of more.py, which is given its device."""

    def on_meta():
        # As in `step`.
        of_adam = torch.optim.Adam.step

        def on_host(optimiser):
            with torch.device("cpu"):
                return of_adam(optimiser)

        # A class that was used before has a step of its own.
        patch = lambda optimiser: mock.patch.object(optimiser, "step", on_host)
        with patch(torch.optim.Adam), patch(torch.optim.AdamW):
            program("meta", lambda: None, lambda loss: None)

    on_meta.__name__ = program.__name__
    return on_meta


PROGRAMS += [of_a_gpu(program) for program in (more.serve, more.bert, more.unet, more.ckpt)]


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder, asked = pathlib.Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    known = {program.__name__: program for program in PROGRAMS}
    for name in asked or known:
        if name not in known:
            sys.exit(f"error: no program {name}: there are {', '.join(known)}")
        random.seed(0)
        recorder = Recorder()
        with recorder, torch.device("meta"):
            known[name]()
        recorder.save(folder / f"{name}.csv.gz")
        print(f"{name}: {len(recorder.events)} events")


if __name__ == "__main__":
    main()
