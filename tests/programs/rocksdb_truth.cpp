/* Counts what RocksDB reads and writes, by RocksDB's own account and without Tidegate. It is
 * preloaded behind the plug-in, so its files are those that the plug-in's file system opens.
 *
 * When the program ends, a line for each kind of job has the bytes of tables that RocksDB reports,
 * the bytes of tables that were written, and the bytes of tables that were read; one has the bytes
 * of the write-ahead log. Then the program waits until its input ends. */
#include <dlfcn.h>
#include <rocksdb/db.h>
#include <rocksdb/file_system.h>
#include <rocksdb/listener.h>
#include <rocksdb/options.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace {

using namespace rocksdb;

enum Kind { kNone, kFlush, kLevel0, kDeeper, kKinds };

struct Counts {
    std::atomic<uint64_t> reported{0}, written{0}, read{0};
};

Counts counts[kKinds];
std::atomic<uint64_t> log_written{0};
std::atomic<bool> was_opened{false};

/* The kind of the job that a thread does. */
thread_local Kind job = kNone;

/* The kinds of jobs by their numbers. */
std::mutex kinds_lock;
std::map<int, Kind> kinds;

Kind kind_of(int job_id, TableFileCreationReason reason) {
    if (reason == TableFileCreationReason::kFlush) {
        return kFlush;
    }
    const std::lock_guard<std::mutex> guard(kinds_lock);
    const auto found = kinds.find(job_id);
    return found == kinds.end() ? kNone : found->second;
}

Kind kind_from(int level) {
    return level == 0 ? kLevel0 : kDeeper;
}

class Listener final : public EventListener {
public:
    void OnFlushBegin(DB *, const FlushJobInfo &) override { job = kFlush; }
    void OnFlushCompleted(DB *, const FlushJobInfo &) override { job = kNone; }
    void OnCompactionBegin(DB *, const CompactionJobInfo &info) override {
        job = kind_from(info.base_input_level);
        const std::lock_guard<std::mutex> guard(kinds_lock);
        kinds[info.job_id] = job;
    }
    void OnCompactionCompleted(DB *, const CompactionJobInfo &) override { job = kNone; }
    void OnSubcompactionBegin(const SubcompactionJobInfo &info) override {
        job = kind_from(info.base_input_level);
    }
    void OnTableFileCreated(const TableFileCreationInfo &info) override {
        if (info.status.ok()) {
            counts[kind_of(info.job_id, info.reason)].reported += info.file_size;
        }
    }
};

bool has_suffix(const std::string &name, const std::string &suffix) {
    return name.size() > suffix.size() &&
           name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0;
}

class Reads final : public FSRandomAccessFileOwnerWrapper {
public:
    using FSRandomAccessFileOwnerWrapper::FSRandomAccessFileOwnerWrapper;
    IOStatus Read(uint64_t offset, size_t count, const IOOptions &options, Slice *result,
                  char *scratch, IODebugContext *debug) const override {
        IOStatus status = target()->Read(offset, count, options, result, scratch, debug);
        counts[job].read += status.ok() ? result->size() : 0;
        return status;
    }
    IOStatus MultiRead(FSReadRequest *requests, size_t count, const IOOptions &options,
                       IODebugContext *debug) override {
        IOStatus status = target()->MultiRead(requests, count, options, debug);
        for (size_t i = 0; i < count; i++) {
            counts[job].read += requests[i].result.size();
        }
        return status;
    }
};

class Writes final : public FSWritableFileOwnerWrapper {
public:
    Writes(std::unique_ptr<FSWritableFile> &&file, bool is_log)
        : FSWritableFileOwnerWrapper(std::move(file)), is_log_(is_log) {}
    IOStatus Append(const Slice &data, const IOOptions &options, IODebugContext *debug) override {
        return count(data, target()->Append(data, options, debug));
    }
    IOStatus Append(const Slice &data, const IOOptions &options, const DataVerificationInfo &sum,
                    IODebugContext *debug) override {
        return count(data, target()->Append(data, options, sum, debug));
    }

private:
    IOStatus count(const Slice &data, IOStatus status) {
        (is_log_ ? log_written : counts[job].written) += status.ok() ? data.size() : 0;
        return status;
    }
    const bool is_log_;
};

class CountingFileSystem final : public FileSystemWrapper {
public:
    using FileSystemWrapper::FileSystemWrapper;
    const char *Name() const override { return "counting"; }
    IOStatus NewRandomAccessFile(const std::string &name, const FileOptions &options,
                                 std::unique_ptr<FSRandomAccessFile> *file,
                                 IODebugContext *debug) override {
        IOStatus status = target()->NewRandomAccessFile(name, options, file, debug);
        if (status.ok() && has_suffix(name, ".sst")) {
            *file = std::make_unique<Reads>(std::move(*file));
        }
        return status;
    }
    IOStatus NewWritableFile(const std::string &name, const FileOptions &options,
                             std::unique_ptr<FSWritableFile> *file,
                             IODebugContext *debug) override {
        IOStatus status = target()->NewWritableFile(name, options, file, debug);
        const bool is_log = has_suffix(name, ".log");
        if (status.ok() && (is_log || has_suffix(name, ".sst"))) {
            *file = std::make_unique<Writes>(std::move(*file), is_log);
        }
        return status;
    }
};

/* The function behind this library that has this name. */
template <typename Function> Function *next(const char *name) {
    return reinterpret_cast<Function *>(dlsym(RTLD_NEXT, name));
}

__attribute__((destructor)) void end() {
    if (!was_opened) {
        return;
    }
    const char *const names[kKinds] = {"none", "flush", "compaction_l0", "compaction"};
    for (int kind = 0; kind < kKinds; kind++) {
        const Counts &one = counts[kind];
        std::printf("truth %s %ju %ju %ju\n", names[kind], uintmax_t{one.reported.load()},
                    uintmax_t{one.written.load()}, uintmax_t{one.read.load()});
    }
    std::printf("truth wal %ju\ndone\n", uintmax_t{log_written.load()});
    std::fflush(stdout);
    while (std::getchar() != EOF) {
    }
}

}  // namespace

namespace rocksdb {

std::shared_ptr<FileSystem> FileSystem::Default() {
    static auto *const standard =
        next<std::shared_ptr<FileSystem>()>("_ZN7rocksdb10FileSystem7DefaultEv");
    static auto *const counting =
        new std::shared_ptr<FileSystem>(std::make_shared<CountingFileSystem>(standard()));
    return *counting;
}

Status DB::Open(const Options &options, const std::string &name, DB **database) {
    using Function = Status(const Options &, const std::string &, DB **);
    static auto *const open = next<Function>(
        "_ZN7rocksdb2DB4OpenERKNS_7OptionsERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
        "PPS0_");
    was_opened = true;
    Options counted = options;
    counted.listeners.push_back(std::make_shared<Listener>());
    return open(counted, name, database);
}

}  // namespace rocksdb
