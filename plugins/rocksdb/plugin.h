/* What the library that programs preload (preload.cpp) and the plug-in that it loads (plugin.cpp)
 * know of each other. Only the plug-in knows RocksDB's headers. */
#ifndef TIDEGATE_ROCKSDB_PLUGIN_H
#define TIDEGATE_ROCKSDB_PLUGIN_H

#include <memory>
#include <string>

namespace rocksdb {
class FileSystem;
struct DBOptions;
struct Options;
}  // namespace rocksdb

/* Functions of a plug-in, for a program with the RocksDB that the plug-in was built for. */
struct TidegatePlugin {
    /* Copies of the options that a database is opened with, and the plug-in's listener among their
     * listeners. `release` frees them. */
    const rocksdb::Options *(*label)(const rocksdb::Options &);
    const rocksdb::DBOptions *(*label_all)(const rocksdb::DBOptions &);
    void (*release)(const rocksdb::Options *);
    void (*release_all)(const rocksdb::DBOptions *);
    /* The plug-in's file system, over RocksDB's own. */
    std::shared_ptr<rocksdb::FileSystem> (*over)(const std::shared_ptr<rocksdb::FileSystem> &);
};

/* `rocksdb::GetRocksVersionAsString`. */
using RocksVersion = std::string (*)(bool with_patch);

/* The function of a plug-in that returns its functions, or null and in `reason` why the plug-in
 * cannot serve the RocksDB whose version function this is. */
using TidegatePluginStart = const TidegatePlugin *(*)(RocksVersion version, std::string &reason);
#define TIDEGATE_PLUGIN_START "tidegate_rocksdb_start"

#endif
