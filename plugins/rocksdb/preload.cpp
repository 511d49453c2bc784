/* The library that programs preload: libtidegate-rocksdb.so.
 *
 * A plug-in is built for one minor version of RocksDB, because C++ has no stable binary interface.
 * This library is built for none: it finds out which RocksDB a program has, loads the plug-in for
 * that version from its own directory, and implements the functions of RocksDB that take the
 * plug-in's parts. So it can be preloaded into every program, also into the shell that starts one.
 *
 * A program without RocksDB runs as it is. With a RocksDB that no plug-in here serves, a program
 * runs without labels, after one line on standard error; with TIDEGATE_FAIL_CLOSED it does not run.
 *
 * A program may load RocksDB later by itself (dlopen). Then RocksDB is found from its first call of
 * a function here, by the library that calls. */
#include <dlfcn.h>
#include <link.h>
#include <strings.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "plugin.h"

/* RocksDB's declarations, as far as names and calls depend on them. */
namespace rocksdb {

class ColumnFamilyHandle;
struct ColumnFamilyDescriptor;
struct TransactionDBOptions;

/* The caller has memory for a result with a destructor, so its size does not matter here. */
class Status {
public:
    Status(Status &&) noexcept;
    ~Status() noexcept;
};

class DB {
public:
    static Status Open(const Options &, const std::string &, DB **);
    static Status Open(const DBOptions &, const std::string &,
                       const std::vector<ColumnFamilyDescriptor> &,
                       std::vector<ColumnFamilyHandle *> *, DB **);
};

class TransactionDB {
public:
    static Status Open(const Options &, const TransactionDBOptions &, const std::string &,
                       TransactionDB **);
    static Status Open(const DBOptions &, const TransactionDBOptions &, const std::string &,
                       const std::vector<ColumnFamilyDescriptor> &,
                       std::vector<ColumnFamilyHandle *> *, TransactionDB **);
};

class FileSystem {
public:
    static std::shared_ptr<FileSystem> Default();
};

}  // namespace rocksdb

namespace {

/* Exit code of a program that must not run without labels; the shim has the same. */
constexpr int kNotStarted = 126;

/* `rocksdb::GetRocksVersionAsString(bool)`. */
constexpr char kVersion[] = "_ZN7rocksdb23GetRocksVersionAsStringB5cxx11Eb";

bool is_enabled(const char *variable) {
    const char *value = std::getenv(variable);
    if (value == nullptr) {
        return false;
    }
    for (const char *no : {"", "0", "n", "no", "f", "false", "off"}) {
        if (strcasecmp(value, no) == 0) {
            return false;
        }
    }
    return true;
}

/* The directory of this library, with a slash. */
std::string directory() {
    Dl_info info{};
    if (dladdr(reinterpret_cast<const void *>(&directory), &info) == 0) {
        return "";
    }
    const std::string path = info.dli_fname;
    return path.substr(0, path.rfind('/') + 1);
}

/* A symbol of RocksDB: behind this library in the order of the loader, or in the library that
 * contains `caller` or in one that it was linked with. */
void *find(const char *symbol, const void *caller) {
    void *found = dlsym(RTLD_NEXT, symbol);
    if (found != nullptr || caller == nullptr) {
        return found;
    }
    Dl_info info{};
    link_map *map = nullptr;
    if (dladdr1(caller, &info, reinterpret_cast<void **>(&map), RTLD_DL_LINKMAP) == 0) {
        return nullptr;
    }
    // The program itself has no name here, and its order of libraries begins before this one.
    if (map->l_name == nullptr || map->l_name[0] == '\0') {
        return nullptr;
    }
    void *library = dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD);
    if (library != nullptr) {
        found = dlsym(library, symbol);
        dlclose(library);
    }
    return found;
}

/* Reports why a program has no labels, and ends it where it must not run without. */
const TidegatePlugin *refuse(const std::string &reason) {
    const bool is_closed = is_enabled("TIDEGATE_FAIL_CLOSED");
    const char *end = is_closed ? "the program does not run" : "its I/O has no contexts";
    dprintf(STDERR_FILENO, "tidegate: RocksDB: %s; %s\n", reason.c_str(), end);
    if (is_closed) {
        _exit(kNotStarted);
    }
    return nullptr;
}

/* Loads the plug-in for this RocksDB. */
const TidegatePlugin *load(RocksVersion version) {
    const std::string path = directory() + "libtidegate-rocksdb-" + version(false) + ".so";
    if (access(path.c_str(), F_OK) != 0) {
        return refuse("the program has version " + version(true) + ", and there is no " + path +
                      ": see docs/src/rocksdb.md to build it");
    }
    void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        return refuse(std::string("the plug-in cannot be loaded: ") + dlerror());
    }
    auto start = reinterpret_cast<TidegatePluginStart>(dlsym(library, TIDEGATE_PLUGIN_START));
    if (start == nullptr) {
        return refuse(path + " is no plug-in of Tidegate");
    }
    std::string reason;
    const TidegatePlugin *plugin = start(version, reason);
    return plugin == nullptr ? refuse(path + " " + reason) : plugin;
}

/* Whether programs' calls of RocksDB's functions arrive here: a program that exports a RocksDB of
 * its own comes before every library. */
bool is_first() {
    Dl_info own{}, first{};
    rocksdb::Status (*open)(const rocksdb::Options &, const std::string &, rocksdb::DB **);
    open = &rocksdb::DB::Open;
    return dladdr(reinterpret_cast<const void *>(&directory), &own) != 0 &&
           dladdr(reinterpret_cast<const void *>(open), &first) != 0 &&
           own.dli_fbase == first.dli_fbase;
}

/* The plug-in for the RocksDB of this process; null if there is none (yet).
 *
 * The plug-in's own start calls functions of RocksDB that call this again. Nothing waits here, for
 * the loader has a lock of its own: meanwhile such calls, and other threads, have no plug-in. */
const TidegatePlugin *plugin(const void *caller) {
    static std::atomic<bool> is_decided{false};
    static std::atomic<const TidegatePlugin *> found{nullptr};
    if (!is_decided.load(std::memory_order_acquire)) {
        auto version = reinterpret_cast<RocksVersion>(find(kVersion, caller));
        if (version != nullptr && !is_decided.exchange(true)) {
            const std::string reason = "the program exports a RocksDB of its own";
            found.store(is_first() ? load(version) : refuse(reason), std::memory_order_release);
        }
    }
    return found.load(std::memory_order_acquire);
}

/* RocksDB is usually there when a program begins; a mismatch is reported then. */
__attribute__((constructor)) void begin() {
    plugin(nullptr);
    if (std::getenv("TIDEGATE_DEBUG") != nullptr && dlsym(RTLD_NEXT, kVersion) == nullptr) {
        dprintf(STDERR_FILENO, "tidegate: RocksDB: not in this program, or not as a library\n");
    }
}

/* RocksDB's function of the same name and arguments as a function here. */
template <typename Function> Function *next(Function *own, const void *caller) {
    Dl_info info{};
    const bool is_known = dladdr(reinterpret_cast<const void *>(own), &info) != 0;
    void *found = is_known && info.dli_sname ? find(info.dli_sname, caller) : nullptr;
    // A caller that reached this library has linked RocksDB, so this does not happen; if it does,
    // there is no function to go on with.
    if (found == nullptr) {
        dprintf(STDERR_FILENO, "tidegate: RocksDB: cannot find the function that was called\n");
        std::abort();
    }
    return reinterpret_cast<Function *>(found);
}

/* Options with the plug-in's listener where there is a plug-in, else the caller's. */
template <typename Options> class Labelled {
public:
    Labelled(const Options &options, const void *caller)
        : plugin_(plugin(caller)), options_(plugin_ ? label(plugin_, options) : &options) {}
    ~Labelled() {
        if (plugin_ != nullptr) {
            release(plugin_, options_);
        }
    }
    Labelled(const Labelled &) = delete;
    Labelled &operator=(const Labelled &) = delete;
    const Options &operator*() const { return *options_; }

private:
    static const Options *label(const TidegatePlugin *plugin, const rocksdb::Options &options) {
        return plugin->label(options);
    }
    static const Options *label(const TidegatePlugin *plugin, const rocksdb::DBOptions &options) {
        return plugin->label_all(options);
    }
    static void release(const TidegatePlugin *plugin, const rocksdb::Options *options) {
        plugin->release(options);
    }
    static void release(const TidegatePlugin *plugin, const rocksdb::DBOptions *options) {
        plugin->release_all(options);
    }

    const TidegatePlugin *plugin_;
    const Options *options_;
};

}  // namespace

#define CALLER __builtin_return_address(0)

namespace rocksdb {

Status DB::Open(const Options &options, const std::string &name, DB **database) {
    using Function = Status(const Options &, const std::string &, DB **);
    static Function *const open = next<Function>(&DB::Open, CALLER);
    const Labelled labelled(options, CALLER);
    return open(*labelled, name, database);
}

Status DB::Open(const DBOptions &options, const std::string &name,
                const std::vector<ColumnFamilyDescriptor> &families,
                std::vector<ColumnFamilyHandle *> *handles, DB **database) {
    using Function = Status(const DBOptions &, const std::string &,
                            const std::vector<ColumnFamilyDescriptor> &,
                            std::vector<ColumnFamilyHandle *> *, DB **);
    static Function *const open = next<Function>(&DB::Open, CALLER);
    const Labelled labelled(options, CALLER);
    return open(*labelled, name, families, handles, database);
}

Status TransactionDB::Open(const Options &options, const TransactionDBOptions &more,
                           const std::string &name, TransactionDB **database) {
    using Function = Status(const Options &, const TransactionDBOptions &, const std::string &,
                            TransactionDB **);
    static Function *const open = next<Function>(&TransactionDB::Open, CALLER);
    const Labelled labelled(options, CALLER);
    return open(*labelled, more, name, database);
}

Status TransactionDB::Open(const DBOptions &options, const TransactionDBOptions &more,
                           const std::string &name,
                           const std::vector<ColumnFamilyDescriptor> &families,
                           std::vector<ColumnFamilyHandle *> *handles, TransactionDB **database) {
    using Function = Status(const DBOptions &, const TransactionDBOptions &, const std::string &,
                            const std::vector<ColumnFamilyDescriptor> &,
                            std::vector<ColumnFamilyHandle *> *, TransactionDB **);
    static Function *const open = next<Function>(&TransactionDB::Open, CALLER);
    const Labelled labelled(options, CALLER);
    return open(*labelled, more, name, families, handles, database);
}

std::shared_ptr<FileSystem> FileSystem::Default() {
    using Function = std::shared_ptr<FileSystem>();
    static Function *const standard = next<Function>(&FileSystem::Default, CALLER);
    const TidegatePlugin *plugged = plugin(CALLER);
    return plugged == nullptr ? standard() : plugged->over(standard());
}

}  // namespace rocksdb
