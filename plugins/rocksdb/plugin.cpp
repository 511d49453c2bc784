/* The plug-in for one minor version of RocksDB: libtidegate-rocksdb-MAJOR.MINOR.so.
 *
 * A listener puts the thread of each background job into a scope, so that everything the thread
 * reads and writes for the job has its context:
 *
 *   flush           a memtable becomes a file of L0
 *   compaction_l0   a compaction with input from L0: its output goes to the base level, or to L0
 *   compaction      a compaction of deeper levels
 *   wal             writes, syncs and reads of the write-ahead log, by whichever thread
 *   (none)          everything else: the requests of clients
 *
 * RocksDB calls a listener on the thread that does the job, and starts a thread for each further
 * subcompaction. One kind of thread has no event: with subcompactions, threads that open the new
 * tables to check them. What these read, footers and indexes, has no context.
 *
 * Under `tidegate run` the shim sees the system calls and has the gates; this plug-in only labels.
 * Of the files, only the write-ahead log is wrapped there. Without the shim, the plug-in opens a
 * stage, and its file system has each read, write and sync admitted. */
#include <dlfcn.h>
#include <rocksdb/db.h>
#include <rocksdb/file_system.h>
#include <rocksdb/listener.h>
#include <rocksdb/options.h>
#include <rocksdb/utilities/object_registry.h>
#include <rocksdb/version.h>
#include <tidegate.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "plugin.h"

namespace {

using namespace rocksdb;

constexpr char kName[] = "tidegate";

/* The job of a thread, and the scope that the thread leaves with it. */
class Job {
public:
    void begin(const char *name) {
        const uint16_t before = tidegate_scope_enter(name);
        if (!is_running_) {
            is_running_ = true;
            outside_ = before;
        }
    }

    void end() {
        if (is_running_) {
            is_running_ = false;
            tidegate_scope_leave(outside_);
        }
    }

private:
    bool is_running_ = false;
    uint16_t outside_ = 0;
};

thread_local Job job;

const char *compaction_from(int level) {
    return level == 0 ? "compaction_l0" : "compaction";
}

/* Some jobs end without an event on their thread: a flush that failed or that another thread
 * installs, a compaction as the database closes. Their threads are RocksDB's workers. A worker does
 * nothing with data between two jobs, and the next job has its own scope. */
class Listener final : public EventListener {
public:
    void OnFlushBegin(DB *, const FlushJobInfo &) override { job.begin("flush"); }
    void OnFlushCompleted(DB *, const FlushJobInfo &) override { job.end(); }
    void OnCompactionBegin(DB *, const CompactionJobInfo &info) override {
        job.begin(compaction_from(info.base_input_level));
    }
    void OnCompactionCompleted(DB *, const CompactionJobInfo &) override { job.end(); }
    /* The thread is the compaction's, which goes on afterwards, or one that ends then. */
    void OnSubcompactionBegin(const SubcompactionJobInfo &info) override {
        job.begin(compaction_from(info.base_input_level));
    }
};

const std::shared_ptr<EventListener> &listener() {
    // Never freed: databases may outlive all static objects.
    static auto *const one = new std::shared_ptr<EventListener>(std::make_shared<Listener>());
    return *one;
}

/* The stage of a process without the shim; null under the shim, which has the gates. It is opened
 * with the first file, and stays open until the process ends. */
tidegate_stage *stage() {
    static tidegate_stage *const opened = []() -> tidegate_stage * {
        tidegate_stage *stage = nullptr;
        const bool is_shim = dlsym(RTLD_DEFAULT, "tidegate_shim_enter") != nullptr;
        const bool is_open = !is_shim && tidegate_stage_open(nullptr, &stage) == TIDEGATE_OK;
        return is_open ? stage : nullptr;
    }();
    return opened;
}

/* A file, as its requests name it. */
struct Subject {
    std::string path;
    bool is_log;
};

/* RocksDB calls nothing but its write-ahead log so. */
bool is_log(const std::string &name) {
    constexpr char kSuffix[] = ".log";
    constexpr size_t kLength = sizeof kSuffix - 1;
    return name.size() > kLength && name.compare(name.size() - kLength, kLength, kSuffix) == 0;
}

/* A request: in the scope of the write-ahead log, if the file is one, and admitted, if this process
 * has a stage. A request that is not admitted, for a path that is no text, is made all the same. */
class Request {
public:
    Request(const Subject &file, uint32_t operation, uint64_t bytes) : is_log_(file.is_log) {
        if (is_log_) {
            outside_ = tidegate_scope_enter("wal");
        }
        is_admitted_ = stage() != nullptr &&
                       tidegate_enforce(stage(), operation, bytes, file.path.c_str(),
                                        &admission_) == TIDEGATE_OK;
    }
    ~Request() {
        if (is_admitted_) {
            tidegate_complete(&admission_, moved);
        }
        if (is_log_) {
            tidegate_scope_leave(outside_);
        }
    }
    Request(const Request &) = delete;
    Request &operator=(const Request &) = delete;

    /* Bytes that the request has moved. */
    uint64_t moved = 0;

private:
    const bool is_log_;
    bool is_admitted_ = false;
    uint16_t outside_ = 0;
    tidegate_admission admission_;
};

/* Makes a write, or a sync of no bytes. */
template <typename Call>
IOStatus change(const Subject &file, uint32_t operation, uint64_t bytes, Call call) {
    Request request(file, operation, bytes);
    IOStatus status = call();
    request.moved = status.ok() ? bytes : 0;
    return status;
}

/* Makes a read of at most so many bytes. */
template <typename Call>
IOStatus read(const Subject &file, uint64_t bytes, const Slice *result, Call call) {
    Request request(file, TIDEGATE_READ, bytes);
    IOStatus status = call();
    request.moved = status.ok() ? result->size() : 0;
    return status;
}

class Sequential final : public FSSequentialFileOwnerWrapper {
public:
    Sequential(std::unique_ptr<FSSequentialFile> &&file, Subject subject)
        : FSSequentialFileOwnerWrapper(std::move(file)), subject_(std::move(subject)) {}

    IOStatus Read(size_t count, const IOOptions &options, Slice *result, char *scratch,
                  IODebugContext *debug) override {
        return read(subject_, count, result, [&] {
            return target()->Read(count, options, result, scratch, debug);
        });
    }
    IOStatus PositionedRead(uint64_t offset, size_t count, const IOOptions &options, Slice *result,
                            char *scratch, IODebugContext *debug) override {
        return read(subject_, count, result, [&] {
            return target()->PositionedRead(offset, count, options, result, scratch, debug);
        });
    }

private:
    const Subject subject_;
};

/* The type of the callback of ReadAsync, which is not the same in all versions. */
template <typename> struct CallbackOf;
template <typename File, typename Callback>
struct CallbackOf<IOStatus (File::*)(FSReadRequest &, const IOOptions &, Callback, void *, void **,
                                     IOHandleDeleter *, IODebugContext *)> {
    using Type = Callback;
};
using ReadCallback = CallbackOf<decltype(&FSRandomAccessFile::ReadAsync)>::Type;

class RandomAccess final : public FSRandomAccessFileOwnerWrapper {
public:
    RandomAccess(std::unique_ptr<FSRandomAccessFile> &&file, Subject subject)
        : FSRandomAccessFileOwnerWrapper(std::move(file)), subject_(std::move(subject)) {}

    IOStatus Read(uint64_t offset, size_t count, const IOOptions &options, Slice *result,
                  char *scratch, IODebugContext *debug) const override {
        return read(subject_, count, result, [&] {
            return target()->Read(offset, count, options, result, scratch, debug);
        });
    }
    IOStatus MultiRead(FSReadRequest *requests, size_t count, const IOOptions &options,
                       IODebugContext *debug) override {
        uint64_t bytes = 0;
        for (size_t i = 0; i < count; i++) {
            bytes += requests[i].len;
        }
        Request request(subject_, TIDEGATE_READ, bytes);
        IOStatus status = target()->MultiRead(requests, count, options, debug);
        for (size_t i = 0; status.ok() && i < count; i++) {
            request.moved += requests[i].status.ok() ? requests[i].result.size() : 0;
        }
        return status;
    }
    /* The request is counted in full as it is handed over: it ends in another call. */
    IOStatus ReadAsync(FSReadRequest &one, const IOOptions &options, ReadCallback callback,
                       void *argument, void **handle, IOHandleDeleter *deleter,
                       IODebugContext *debug) override {
        return change(subject_, TIDEGATE_READ, one.len, [&] {
            return target()->ReadAsync(one, options, callback, argument, handle, deleter, debug);
        });
    }

private:
    const Subject subject_;
};

class Writable final : public FSWritableFileOwnerWrapper {
public:
    Writable(std::unique_ptr<FSWritableFile> &&file, Subject subject)
        : FSWritableFileOwnerWrapper(std::move(file)), subject_(std::move(subject)) {}

    IOStatus Append(const Slice &data, const IOOptions &options, IODebugContext *debug) override {
        return change(subject_, TIDEGATE_WRITE, data.size(), [&] {
            return target()->Append(data, options, debug);
        });
    }
    IOStatus Append(const Slice &data, const IOOptions &options, const DataVerificationInfo &sum,
                    IODebugContext *debug) override {
        return change(subject_, TIDEGATE_WRITE, data.size(), [&] {
            return target()->Append(data, options, sum, debug);
        });
    }
    IOStatus PositionedAppend(const Slice &data, uint64_t offset, const IOOptions &options,
                              IODebugContext *debug) override {
        return change(subject_, TIDEGATE_WRITE, data.size(), [&] {
            return target()->PositionedAppend(data, offset, options, debug);
        });
    }
    IOStatus PositionedAppend(const Slice &data, uint64_t offset, const IOOptions &options,
                              const DataVerificationInfo &sum, IODebugContext *debug) override {
        return change(subject_, TIDEGATE_WRITE, data.size(), [&] {
            return target()->PositionedAppend(data, offset, options, sum, debug);
        });
    }
    IOStatus Sync(const IOOptions &options, IODebugContext *debug) override {
        return change(subject_, TIDEGATE_SYNC, 0, [&] { return target()->Sync(options, debug); });
    }
    IOStatus Fsync(const IOOptions &options, IODebugContext *debug) override {
        return change(subject_, TIDEGATE_SYNC, 0, [&] { return target()->Fsync(options, debug); });
    }
    IOStatus RangeSync(uint64_t offset, uint64_t length, const IOOptions &options,
                       IODebugContext *debug) override {
        return change(subject_, TIDEGATE_SYNC, 0, [&] {
            return target()->RangeSync(offset, length, options, debug);
        });
    }

private:
    const Subject subject_;
};

class ReadWrite final : public FSRandomRWFileOwnerWrapper {
public:
    ReadWrite(std::unique_ptr<FSRandomRWFile> &&file, Subject subject)
        : FSRandomRWFileOwnerWrapper(std::move(file)), subject_(std::move(subject)) {}

    IOStatus Write(uint64_t offset, const Slice &data, const IOOptions &options,
                   IODebugContext *debug) override {
        return change(subject_, TIDEGATE_WRITE, data.size(), [&] {
            return target()->Write(offset, data, options, debug);
        });
    }
    IOStatus Read(uint64_t offset, size_t count, const IOOptions &options, Slice *result,
                  char *scratch, IODebugContext *debug) const override {
        return read(subject_, count, result, [&] {
            return target()->Read(offset, count, options, result, scratch, debug);
        });
    }
    IOStatus Sync(const IOOptions &options, IODebugContext *debug) override {
        return change(subject_, TIDEGATE_SYNC, 0, [&] { return target()->Sync(options, debug); });
    }
    IOStatus Fsync(const IOOptions &options, IODebugContext *debug) override {
        return change(subject_, TIDEGATE_SYNC, 0, [&] { return target()->Fsync(options, debug); });
    }

private:
    const Subject subject_;
};

/* Only syncs: RocksDB makes new names of files durable so. */
class Directory final : public FSDirectoryWrapper {
public:
    Directory(std::unique_ptr<FSDirectory> &&directory, Subject subject)
        : FSDirectoryWrapper(directory.get()),
          guard_(std::move(directory)),
          subject_(std::move(subject)) {}

    IOStatus Fsync(const IOOptions &options, IODebugContext *debug) override {
        return change(subject_, TIDEGATE_SYNC, 0, [&] { return guard_->Fsync(options, debug); });
    }
    IOStatus FsyncWithDirOptions(const IOOptions &options, IODebugContext *debug,
                                 const DirFsyncOptions &how) override {
        return change(subject_, TIDEGATE_SYNC, 0, [&] {
            return guard_->FsyncWithDirOptions(options, debug, how);
        });
    }

private:
    const std::unique_ptr<FSDirectory> guard_;
    const Subject subject_;
};

/* RocksDB's file system, with files that label and ask. */
class GatedFileSystem final : public FileSystemWrapper {
public:
    using FileSystemWrapper::FileSystemWrapper;

    const char *Name() const override { return kName; }

    IOStatus NewSequentialFile(const std::string &name, const FileOptions &options,
                               std::unique_ptr<FSSequentialFile> *file,
                               IODebugContext *debug) override {
        return wrap<Sequential>(target()->NewSequentialFile(name, options, file, debug), name,
                                file);
    }
    IOStatus NewRandomAccessFile(const std::string &name, const FileOptions &options,
                                 std::unique_ptr<FSRandomAccessFile> *file,
                                 IODebugContext *debug) override {
        return wrap<RandomAccess>(target()->NewRandomAccessFile(name, options, file, debug), name,
                                  file);
    }
    IOStatus NewWritableFile(const std::string &name, const FileOptions &options,
                             std::unique_ptr<FSWritableFile> *file,
                             IODebugContext *debug) override {
        return wrap<Writable>(target()->NewWritableFile(name, options, file, debug), name, file);
    }
    IOStatus ReopenWritableFile(const std::string &name, const FileOptions &options,
                                std::unique_ptr<FSWritableFile> *file,
                                IODebugContext *debug) override {
        return wrap<Writable>(target()->ReopenWritableFile(name, options, file, debug), name,
                              file);
    }
    IOStatus ReuseWritableFile(const std::string &name, const std::string &old,
                               const FileOptions &options, std::unique_ptr<FSWritableFile> *file,
                               IODebugContext *debug) override {
        return wrap<Writable>(target()->ReuseWritableFile(name, old, options, file, debug), name,
                              file);
    }
    IOStatus NewRandomRWFile(const std::string &name, const FileOptions &options,
                             std::unique_ptr<FSRandomRWFile> *file,
                             IODebugContext *debug) override {
        return wrap<ReadWrite>(target()->NewRandomRWFile(name, options, file, debug), name, file);
    }
    IOStatus NewDirectory(const std::string &name, const IOOptions &options,
                          std::unique_ptr<FSDirectory> *directory,
                          IODebugContext *debug) override {
        return wrap<Directory>(target()->NewDirectory(name, options, directory, debug), name,
                               directory);
    }

private:
    /* Puts a file that was opened into a wrapper, if requests of it need one. */
    template <typename Wrapper, typename File>
    IOStatus wrap(IOStatus status, const std::string &name, std::unique_ptr<File> *file) {
        if (status.ok() && (is_log(name) || stage() != nullptr)) {
            // Rules name absolute paths. RocksDB's own GetAbsolutePath answers a relative one with
            // the working directory alone.
            std::error_code error;
            const auto path = std::filesystem::absolute(name, error).lexically_normal();
            Subject subject{error ? name : path.string(), is_log(name)};
            *file = std::make_unique<Wrapper>(std::move(*file), std::move(subject));
        }
        return status;
    }
};

/* The file system that options name as tidegate://. RocksDB's own is the gated one already. */
class NamedFileSystem final : public FileSystemWrapper {
public:
    using FileSystemWrapper::FileSystemWrapper;

    const char *Name() const override { return kName; }
};

template <typename Options> const Options *label(const Options &options) {
    auto *labelled = new Options(options);
    auto &listeners = labelled->listeners;
    // One function of RocksDB that opens a database may call another.
    if (std::find(listeners.begin(), listeners.end(), listener()) == listeners.end()) {
        listeners.push_back(listener());
    }
    return labelled;
}

template <typename Options> void release(const Options *options) {
    delete options;
}

std::shared_ptr<FileSystem> over(const std::shared_ptr<FileSystem> &standard) {
    // Never freed, as RocksDB's own.
    static auto *const gated =
        new std::shared_ptr<FileSystem>(std::make_shared<GatedFileSystem>(standard));
    return *gated;
}

void register_name() {
    ObjectLibrary::Default()->AddFactory<FileSystem>(
        std::string(kName) + "://",
        [](const std::string &, std::unique_ptr<FileSystem> *guard, std::string *) {
            guard->reset(new NamedFileSystem(FileSystem::Default()));
            return guard->get();
        });
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const TidegatePlugin *
tidegate_rocksdb_start(RocksVersion version, std::string &reason) {
    static const TidegatePlugin plugin{label<Options>, label<DBOptions>, release<Options>,
                                       release<DBOptions>, over};
    const std::string built =
        std::to_string(ROCKSDB_MAJOR) + "." + std::to_string(ROCKSDB_MINOR);
    if (version(false) != built) {
        reason = "is for version " + built + ", and the program has " + version(true);
        return nullptr;
    }
    // Two copies of RocksDB of one version: what one has registered, the other does not know.
    if (version != static_cast<RocksVersion>(GetRocksVersionAsString)) {
        reason = "has found another copy of RocksDB than the program";
        return nullptr;
    }
    register_name();
    return &plugin;
}
