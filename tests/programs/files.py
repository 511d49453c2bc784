"""Files by every way that Python knows, with nothing said about times."""

import hashlib
import mmap
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import zipfile


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest() if hasattr(
            hashlib, "file_digest") else hashlib.md5(file.read()).hexdigest()


def plain():
    with open("plain", "w") as file:
        for number in range(20000):
            file.write(f"{number}\n")
    with open("plain", "r+b", buffering=0) as file:
        file.seek(0, os.SEEK_END)
        file.write(b"end")
        file.seek(5)
        file.write(b"five")
        print(file.read(12), file.tell())
    with open("plain") as file:
        print(sum(1 for _ in file))


def by_descriptor():
    descriptor = os.open("descriptor", os.O_RDWR | os.O_CREAT, 0o640)
    print(os.write(descriptor, b"x" * 100000), os.pwrite(descriptor, b"there", 5 << 30))
    print(os.writev(descriptor, [b"a", b"bc", b"def"]), os.pread(descriptor, 9, (5 << 30) - 2))
    print(os.preadv(descriptor, [bytearray(3), bytearray(4)], 0), os.lseek(descriptor, 0, 1))
    os.ftruncate(descriptor, 200000)
    os.posix_fallocate(descriptor, 0, 300000)
    os.fsync(descriptor), os.fdatasync(descriptor)
    other = os.dup2(descriptor, 77)
    os.close(descriptor)
    print(os.fstat(other).st_size, oct(os.fstat(other).st_mode), os.get_inheritable(other))
    os.close(other)
    try:
        os.write(other, b"x")
    except OSError as error:
        print(error)


def copies():
    shutil.copyfile("data/large", "copied")
    shutil.copytree("data", "tree", symlinks=True)
    shutil.move("tree", "moved")
    with open("data/large", "rb") as source, open("ranged", "wb") as target:
        count = os.copy_file_range(source.fileno(), target.fileno(), 1000000, 5)
        while count < 1000000:
            count += os.copy_file_range(source.fileno(), target.fileno(), 1000000 - count)
    with open("data/large", "rb") as source, open("sent", "wb") as target:
        print(os.sendfile(target.fileno(), source.fileno(), 3, 70000))
    for name in ("copied", "ranged", "sent"):
        print(name, digest(name))


def mapped():
    with open("mapped", "w+b") as file:
        file.truncate(1 << 20)
        with mmap.mmap(file.fileno(), 0) as memory:
            memory[:5] = b"begin"
            memory[-3:] = b"end"
            memory.flush()
    print(digest("mapped"))


def folders():
    os.makedirs("a/b/c", exist_ok=True)
    os.rename("a/b/c", "a/d")
    os.symlink("d", "a/e")
    print(sorted(os.listdir("a")), [sorted(found) for _, *found in os.walk("a")])
    print(sorted(entry.name for entry in os.scandir("data")), os.path.getsize("data/odd"))
    os.chmod("a/d", 0o700), os.utime("a/d", (1, 2)), os.removedirs("a/b") if False else None
    for wrong in (lambda: open("missing"), lambda: os.rmdir("data"), lambda: os.stat("a/x/y")):
        try:
            wrong()
        except OSError as error:
            print(type(error).__name__, error)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        with open(os.path.join(folder, "x"), "w") as file:
            print("temporary", file=file)


def work(number):
    with open(f"worker-{number}", "wb") as file:
        file.write(bytes([number]) * 50000)
    return digest(f"worker-{number}")


def processes():
    print(subprocess.run(["cat", "data/deep/text"], capture_output=True).stdout.count(b"\n"))
    print(subprocess.call(["sh", "-c", "exit 7"]), subprocess.call(["sh", "-c", "kill -9 $$"]))
    with open("data/odd", "rb") as source, open("through", "wb") as target:
        subprocess.run(["cat"], stdin=source, stdout=target, close_fds=True, check=True)
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(3) as pool:
            print(method, pool.map(work, range(6)))
    child = os.fork()
    if child == 0:
        with open("forked", "w") as file:
            file.write("from the child")
        os._exit(5)
    print(os.waitpid(child, 0)[1])
    threads = [threading.Thread(target=work, args=(10 + number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def libraries():
    with sqlite3.connect("lib.db") as base:
        base.execute("create table t (a)")
        base.executemany("insert into t values (?)", ((number,) for number in range(1000)))
        print(base.execute("select sum(a) from t").fetchone())
    with zipfile.ZipFile("z.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo("x"), b"y" * 100000)
    print(zipfile.ZipFile("z.zip").testzip())


if __name__ == "__main__":
    for step in (plain, by_descriptor, copies, mapped, folders, processes, libraries):
        print("--", step.__name__)
        sys.stdout.flush()
        step()
    os.unlink("descriptor")
