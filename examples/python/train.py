"""Trains a small classifier on shards of images, with PyTorch's loader where it is installed.

    python3 examples/python/train.py DIRECTORY --passes 3

Shards are the files of the directory, in the binary form of CIFAR-10: records of one byte with the
label and 3,072 with the image. Workers read them in a new order in each pass, in pieces of 256 KiB,
ahead of the training: processes of PyTorch's DataLoader, else threads with NumPy.

The program knows nothing of Tidegate. `tidegate run --tenant NAME -- python3 train.py ...` holds
its reads at the tenant's gates, and `tidegate-lab repro paio 10 --workload torch` runs four of it.
"""

import argparse
import json
import pathlib
import queue
import random
import sys
import threading
import time

try:
    import torch
except ImportError:
    torch = None
if torch is None:
    try:
        import numpy
    except ImportError:
        sys.exit("there is neither PyTorch nor NumPy; try apt-get install python3-numpy")

IMAGE = 3072
RECORD = 1 + IMAGE
CLASSES = 10
PIECE = 256 << 10
STEP = 0.01
SAMPLED = 16
"""The model sees one byte of so many, so that reading decides how long a pass takes."""


def pieces(paths, passes, seed):
    """The bytes read at a time, and the whole records that are then complete, if there are any."""
    order = random.Random(seed)
    for _ in range(passes):
        for path in order.sample(paths, len(paths)):
            rest = b""
            with open(path, "rb", buffering=0) as file:
                while data := file.read(PIECE):
                    records = bytearray(rest + data)
                    whole = len(records) // RECORD * RECORD
                    rest = bytes(records[whole:])
                    yield len(data), records[:whole] or None


def train_with_torch(paths, passes, workers):
    class Shards(torch.utils.data.IterableDataset):
        def __iter__(self):
            worker = torch.utils.data.get_worker_info()
            number, count = (worker.id, worker.num_workers) if worker else (0, 1)
            for length, records in pieces(paths[number::count], passes, number):
                if records is not None:
                    records = torch.frombuffer(records, dtype=torch.uint8).view(-1, RECORD)
                yield length, records

    torch.set_num_threads(1)
    model = torch.nn.Linear(IMAGE // SAMPLED, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=STEP)
    loss_of = torch.nn.CrossEntropyLoss()
    loader = torch.utils.data.DataLoader(Shards(), batch_size=None, num_workers=workers)
    moved, loss = 0, None
    for length, batch in loader:
        moved += length
        if batch is None:
            continue
        images, labels = batch[:, 1::SAMPLED].float() / 255, batch[:, 0].long() % CLASSES
        loss = loss_of(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return moved, None if loss is None else loss.item()


def train_with_numpy(paths, passes, workers):
    batches, ended = queue.Queue(2 * workers), object()

    def work(number):
        try:
            for length, records in pieces(paths[number::workers], passes, number):
                if records is not None:
                    records = numpy.frombuffer(records, numpy.uint8).reshape(-1, RECORD)
                batches.put((length, records))
            batches.put(ended)
        except BaseException as error:
            batches.put(error)
            raise

    for number in range(workers):
        threading.Thread(target=work, args=[number], daemon=True).start()
    weights = numpy.zeros((IMAGE // SAMPLED, CLASSES), numpy.float32)
    moved, loss, running = 0, None, workers
    while running:
        item = batches.get()
        if item is ended:
            running -= 1
            continue
        if isinstance(item, BaseException):
            raise item
        length, batch = item
        moved += length
        if batch is None:
            continue
        images = batch[:, 1::SAMPLED].astype(numpy.float32) / 255
        labels = batch[:, 0] % CLASSES
        scores = images @ weights
        scores -= scores.max(axis=1, keepdims=True)
        odds = numpy.exp(scores)
        odds /= odds.sum(axis=1, keepdims=True)
        rows = numpy.arange(len(labels))
        loss = float(-numpy.log(odds[rows, labels]).mean())
        odds[rows, labels] -= 1
        weights -= STEP * images.T @ odds / len(labels)
    return moved, loss


def framework():
    library = f"NumPy {numpy.__version__}" if torch is None else f"PyTorch {torch.__version__}"
    return "Python {}.{}, {}".format(*sys.version_info[:2], library)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=pathlib.Path, help="where the shards are")
    parser.add_argument("--passes", type=int, default=1, help="how often to go over all shards")
    parser.add_argument("--workers", type=int, default=4, help="readers ahead of the training")
    parser.add_argument("--report", type=pathlib.Path, help="where the report goes")
    parser.add_argument("--started", type=pathlib.Path, help="a file to make before the first read")
    options = parser.parse_args()
    paths = sorted(path for path in options.directory.iterdir() if path.is_file())
    workers = min(options.workers, len(paths))
    if workers < 1 or options.passes < 1:
        parser.error("there is nothing to read")
    train = train_with_numpy if torch is None else train_with_torch
    if options.started is not None:
        options.started.touch()
    begin = time.monotonic()
    moved, loss = train(paths, options.passes, workers)
    seconds = time.monotonic() - begin
    report = json.dumps(
        {"bytes": moved, "seconds": seconds, "loss": loss, "framework": framework()}
    )
    if options.report is None:
        print(report)
    else:
        options.report.write_text(report + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--version"]:
        print(sys.executable, framework(), sep="\n")
    else:
        main()
