/* Tidegate: the gates of a stage, and keys and values in a data node's memory, in C.
 *
 * Generated from crates/capi; do not edit. The guides are docs/src/capi.md and, for stores,
 * docs/src/data-nodes.md.
 *
 * Functions return TIDEGATE_OK or another status; tidegate_strerror() says what it means and
 * tidegate_error_detail() what exactly was wrong. Every function may be called from any thread at
 * any time, but for those that close something. Structures that begin with a size may grow: set it
 * to their sizeof and everything you do not mean to zero. Text is UTF-8 and ends with a zero; it is
 * copied where it is kept.
 */

#ifndef TIDEGATE_H
#define TIDEGATE_H

#include <stddef.h>
#include <stdint.h>

// It is done.
#define TIDEGATE_OK 0

// An argument is null, misaligned, out of range, not UTF-8, or a structure of an unknown size; or
// an admission is not under way.
#define TIDEGATE_INVALID 1

// Something in the library went wrong. This is a defect: please report it.
#define TIDEGATE_FAILURE 2

// The operating system refused something: memory, a thread, random numbers.
#define TIDEGATE_SYSTEM 3

// A rule was refused; tidegate_error_detail() has the reason. Nothing was changed.
#define TIDEGATE_REFUSED 4

// The caller's buffer is too small, or content is larger than the caller allows.
#define TIDEGATE_TOO_SMALL 5

// A gate names a key that was not given when the stage was opened.
#define TIDEGATE_NO_KEY 6

// Content was changed, or was written with another key, for another place, or by no gate of this
// channel.
#define TIDEGATE_NOT_AUTHENTIC 7

// The rules changed while a request was under way, or in the parent since this process was forked,
// so that it is not known any more whether its content is to be encrypted or compressed.
#define TIDEGATE_RULES_CHANGED 8

// No data node listens there, or it does not answer; or it is gone, and without it there are no
// tokens for the operation.
#define TIDEGATE_UNREACHABLE 9

// The data node does not let this client in: its policy has no such tenant, or the user may not
// act for it, or not so much is left to promise.
#define TIDEGATE_NOT_ADMITTED 10

// The data node, or the store in its memory, is of another release.
#define TIDEGATE_OTHER_VERSION 11

// A key has no bytes, or too many.
#define TIDEGATE_KEY_LENGTH 12

// A value has too many bytes.
#define TIDEGATE_VALUE_LENGTH 13

// The store has no room for a key or its value.
#define TIDEGATE_FULL 14

// Others changed the same key again and again. Nothing was changed; try again.
#define TIDEGATE_CONTENDED 15

// The store, or a value in it, is not what was written.
#define TIDEGATE_DAMAGED 16

// An operation was not done in time: there were no tokens for it. A change may still be
// made later.
#define TIDEGATE_LATE 17

// The store was opened by the process that this one was forked from.
#define TIDEGATE_FORKED 18

// This client's updates hold as many blocks of the store as they may at this time. Nothing was
// changed; try again after two periods.
#define TIDEGATE_THROTTLED 19

// No controller has sent rules yet: none is there, or it has not answered, or it has no policy.
// They may still come.
#define TIDEGATE_NO_RULES 20

// The controller refuses the stage: its policy has no such tenant, or the user may not act for it.
// Or the stage cannot hold the rules of the policy.
#define TIDEGATE_STAGE_REFUSED 21

// The version of this header.
#define TIDEGATE_VERSION 256

// Data from storage.
#define TIDEGATE_READ 0

// Data to storage.
#define TIDEGATE_WRITE 1

// Makes data durable.
#define TIDEGATE_SYNC 2

// Reserves or frees space.
#define TIDEGATE_ALLOCATE 3

// Opens, creates or closes a file.
#define TIDEGATE_OPEN 4

// Asks about a file.
#define TIDEGATE_STAT 5

// Reads a directory.
#define TIDEGATE_LIST 6

// Changes names.
#define TIDEGATE_LINK 7

// Reads or changes attributes.
#define TIDEGATE_ATTRIBUTE 8

// Reads one key.
#define TIDEGATE_GET 9

// Writes one key.
#define TIDEGATE_PUT 10

// Removes one key.
#define TIDEGATE_DELETE 11

// Reads a range of keys.
#define TIDEGATE_SCAN 12

// Lets every request through; useful for counting.
#define TIDEGATE_GATE_OPEN 0

// A token bucket of bytes.
#define TIDEGATE_GATE_BYTES 1

// A token bucket of operations.
#define TIDEGATE_GATE_OPERATIONS 2

// At most `depth` requests in service, first come, first served.
#define TIDEGATE_GATE_CONCURRENCY 3

// Compresses with zstd (tidegate_write() and tidegate_restore() only).
#define TIDEGATE_GATE_COMPRESS 4

// Encrypts with AES-256-GCM (tidegate_write() and tidegate_restore() only).
#define TIDEGATE_GATE_ENCRYPT 5

// Served before everything else.
#define TIDEGATE_URGENT 0

// The largest share.
#define TIDEGATE_HIGH 1

// The usual share.
#define TIDEGATE_MEDIUM 2

// The rest.
#define TIDEGATE_LOW 3

// Bytes of the longest key; the shortest has one.
#define TIDEGATE_KEY_MAX 250

// Bytes of the longest value.
#define TIDEGATE_VALUE_MAX 4096

// Bytes of the longest key and value together.
#define TIDEGATE_ENTRY_MAX 4144

// A stage: gates that this process's requests pass, and the link to a controller that sets them.
//
// Every function may be called from any thread at any time, except that no other call may be under
// way, and no admission, when the stage is closed.
typedef struct tidegate_stage tidegate_stage;

// A client of a data node: keys and values in memory of that node, which this process reads and
// writes by itself.
//
// Every function may be called from any thread at any time, except that no other call may be under
// way when the store is closed. Calls of several threads share what is promised to the store.
typedef struct tidegate_store tidegate_store;

// A key for gates that encrypt.
typedef struct {
    // The name that gates call it by.
    const char *name;
    // 32 bytes.
    const uint8_t *bytes;
} tidegate_key;

// Identity of a stage, and its controller. A field that is zero has its default.
typedef struct {
    // sizeof(tidegate_settings).
    size_t size;
    // The tenant that the program acts for. By default the policy's match rules decide.
    const char *tenant;
    // The controller's socket. By default $TIDEGATE_SOCKET, else where `tidegate up` listens.
    const char *socket;
    // Name of the program, for people. By default its command.
    const char *command;
    // 1 if content passes through tidegate_write() and tidegate_restore(), so that the policy may
    // have it compressed and encrypted; 0 if not.
    int layered;
    // How many keys there are.
    size_t key_count;
    // Keys for gates that encrypt. They are copied, and never leave the process.
    const tidegate_key *keys;
} tidegate_settings;

// State of a stage.
typedef struct {
    // sizeof(tidegate_info), set by the caller.
    size_t size;
    // How many sets of rules it has had; zero means that requests pass unhindered.
    uint32_t generation;
    // Zero.
    uint32_t reserved;
    // Requests that passed unhindered because they were about no storage.
    uint64_t not_storage;
    // Requests that passed unhindered because a queue was full for two seconds.
    uint64_t queue_full;
} tidegate_info;

// Traffic of a channel. Counters only grow.
typedef struct {
    // The channel's number, as in tidegate_tag. Channels are numbered from zero in the order in
    // which they are made; the number of one that was removed is given again, last of all.
    uint32_t channel;
    // Zero.
    uint32_t reserved;
    // Requests that passed.
    uint64_t operations;
    // Bytes they moved.
    uint64_t bytes;
    // Nanoseconds they waited, in all.
    uint64_t waited_ns;
} tidegate_counters;

// A request that may go, in memory of the caller, who need not initialise it. It may be moved, and
// completed by another thread than the one that got it; it must not be copied and completed twice.
typedef struct {
    // The library's.
    uint64_t opaque[20];
} tidegate_admission;

// The tag that a request carries from here on: 16 bytes, and the channel beside them.
typedef struct {
    // The tenant, as the controller numbers tenants; zero is no tenant.
    uint16_t tenant;
    // Why it is made; see tidegate_intern().
    uint16_t context;
    // How urgent it is: one of TIDEGATE_URGENT to TIDEGATE_LOW.
    uint8_t urgency;
    // The operation: one of TIDEGATE_READ to TIDEGATE_SCAN.
    uint8_t operation;
    // Zero.
    uint16_t reserved;
    // The cost: bytes, or 1 if it moves none.
    uint32_t cost;
    // Cost that its tenant was served elsewhere; zero before a gateway has set it.
    uint32_t delay;
    // The channel that it belongs to, or -1 if it belongs to none and passed unhindered.
    int32_t channel;
} tidegate_tag;

// A gate. Fields that its kind does not use are ignored.
typedef struct {
    // sizeof(tidegate_gate).
    size_t size;
    // One of TIDEGATE_GATE_OPEN to TIDEGATE_GATE_ENCRYPT.
    uint32_t kind;
    // For concurrency: how many requests are in service at a time, from 1 to 256.
    uint32_t depth;
    // For buckets: bytes or operations per second; from 2^40 on there is no limit.
    uint64_t rate;
    // For buckets: how many bytes or operations may pass at once after a pause. By default what
    // the rate yields in ten milliseconds.
    uint64_t burst;
    // For compression: the level, from 1, fast, to 19, small. By default 3.
    int32_t level;
    // For encryption: the name of a key in tidegate_settings.
    const char *key;
} tidegate_gate;

// Conditions of a rule. A field that is zero is no condition.
//
// Patterns are globs: `?` is one character, `*` any run without `/`, `**` any run, `[a-z]` a
// class, `{a,b}` a choice; everything else stands for itself.
typedef struct {
    // sizeof(tidegate_rule).
    size_t size;
    // Operations, as a sum of 1u << TIDEGATE_READ and so on.
    uint64_t operations;
    // The least bytes that it moves.
    uint64_t bytes_min;
    // The most bytes that it moves.
    uint64_t bytes_max;
    // A pattern of contexts; see tidegate_scope_enter().
    const char *context;
    // A pattern of absolute paths.
    const char *path;
    // A pattern of thread names.
    const char *workflow;
} tidegate_rule;

// A request with content.
typedef struct {
    // sizeof(tidegate_request).
    size_t size;
    // One of TIDEGATE_READ to TIDEGATE_SCAN.
    uint32_t operation;
    // Zero.
    uint32_t reserved;
    // The absolute path of the file it is about, for rules with a path, or null.
    const char *path;
} tidegate_request;

// Bytes to read. The pointer may be null if the length is zero.
typedef struct {
    // Where they are.
    const uint8_t *data;
    // How many there are.
    size_t length;
} tidegate_bytes;

// Room for bytes. The pointer may be null if the capacity is zero.
typedef struct {
    // Where it is.
    uint8_t *data;
    // How many fit.
    size_t capacity;
} tidegate_buffer;

// Tenant and time-out of a store. A field that is zero has its default.
typedef struct {
    // sizeof(tidegate_store_settings).
    size_t size;
    // The tenant that the program acts for. By default the policy's match rules decide.
    const char *tenant;
    // How long to wait for the data node when the store is opened, and how long an operation may
    // take, in nanoseconds. By default ten seconds.
    uint64_t timeout_ns;
    // Of how many equal parts of what its tenant is promised the store has one. By default it has
    // all that is left.
    uint32_t parts;
    // For how many keys to remember where their values are, with 16 bytes each: a get of one of
    // those takes one operation on the memory instead of three. By default 65,536.
    uint32_t locations;
    // 1 to do without promises, tokens and limits, for measurements, which only root and the data
    // node's own user may; 0 to have them.
    int bare;
    // Zero.
    uint32_t reserved;
} tidegate_store_settings;

// A key to look up, and the result.
typedef struct {
    // The key, set by the caller.
    tidegate_bytes key;
    // Where its value is to go, set by the caller.
    tidegate_buffer buffer;
    // The value, as tidegate_store_get() gives it.
    tidegate_bytes value;
    // How it went: what tidegate_store_get() would have returned.
    int status;
    // Zero.
    uint32_t reserved;
} tidegate_lookup;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The meaning of a status, in a few words. Never null; the text lives as long as the program.
const char *tidegate_strerror(int status);

// The exact error of the function that failed last on this thread, in words for people. Never
// null, empty if none has failed; the text lives until the next function fails on this thread.
const char *tidegate_error_detail(void);

// The version of the library: 0x00MMmmpp for MM.mm.pp. To be compared with TIDEGATE_VERSION, that
// of the header.
uint32_t tidegate_version(void);

// Opens a stage and starts its thread, which connects to the controller. Returns at once, whether
// or not a controller is there: without one, requests pass unhindered, and the thread goes on
// trying. A null pointer for `settings` means the defaults.
//
// After fork() the child's requests still pass the stage's gates and are counted; the thread and
// the link stay with the parent. So in the child functions that change rules answer
// TIDEGATE_REFUSED, and once the parent's rules have changed, content that may have to be
// encrypted or compressed TIDEGATE_RULES_CHANGED. To be called once per process, usually, and
// before threads that use it are started.
//
// TIDEGATE_INVALID: a null or misaligned pointer for `stage`, a key that is not there.
// TIDEGATE_SYSTEM: no memory for the segment, or no thread.
int tidegate_stage_open(const tidegate_settings *settings, tidegate_stage **stage);

// Closes a stage: disconnects from the controller and ends the thread, which takes some
// milliseconds. Requests that still wait at its gates keep waiting, so there must be none. Does
// nothing with a null pointer. In a child of fork() it frees what the child has of the stage, and
// leaves the parent's as it is.
//
// TIDEGATE_INVALID: a misaligned pointer.
int tidegate_stage_close(tidegate_stage *stage);

// Whether a stage has rules, a controller's or the program's own. If not, tidegate_error_detail()
// says why. Does not wait: a program that is to begin with rules calls it again after some
// milliseconds, until it returns another status than TIDEGATE_NO_RULES.
//
// TIDEGATE_INVALID: a null or misaligned pointer.
// TIDEGATE_NO_RULES: no controller is there, or it has not answered yet, or it has no policy.
// TIDEGATE_STAGE_REFUSED: the controller refuses the stage, or the stage cannot hold its rules.
// The thread goes on trying if another policy could change that.
int tidegate_stage_ready(const tidegate_stage *stage);

// Fills `info`, whose size the caller has set.
//
// TIDEGATE_INVALID: a null or misaligned pointer, or a size that is not sizeof(tidegate_info).
int tidegate_stage_info(const tidegate_stage *stage, tidegate_info *info);

// Reads the counters of every channel that anything has flowed through, in order of their numbers,
// without stopping any request. Stores as many as there are in `count`, and the first `capacity`
// of them at `counters`, which may be null if `capacity` is zero. There are never more than 128.
//
// TIDEGATE_INVALID: a null or misaligned pointer.
// TIDEGATE_TOO_SMALL: there are more than `capacity`.
int tidegate_collect(const tidegate_stage *stage,
                     tidegate_counters *counters,
                     size_t capacity,
                     size_t *count);

// Lets a request pass the gates of its channel, which may take a while: the thread sleeps as long
// as the rules in force demand. Returns when the request may be made, and fills `admission`, which
// is to be completed with tidegate_complete() when it is done. Takes some 20 ns if there is
// nothing to wait for, allocates nothing and makes no system call then.
//
// operation: one of TIDEGATE_READ to TIDEGATE_SCAN. bytes: how much data it moves at most; zero
// for operations that move none. path: the absolute path of the file it is about, or null. A
// request without a path matches no rule with a path, and of resources of files only "/**".
//
// A thread that has an admission under way must not make another request through the same queue
// (concurrency, fair, priority) before it is completed: it might wait for its own turn, for good.
//
// TIDEGATE_INVALID: a null or misaligned pointer for `stage` or `admission`, an unknown operation,
// a path that is not UTF-8. There is nothing to complete then.
int tidegate_enforce(const tidegate_stage *stage,
                     uint32_t operation,
                     uint64_t bytes,
                     const char *path,
                     tidegate_admission *admission);

// tidegate_enforce() for a request about an open file of this process, whose path is found out
// when the descriptor is first used and then remembered. Requests about pipes, sockets, terminals
// and files in memory pass unhindered. Call tidegate_forget() when the descriptor is closed.
//
// TIDEGATE_INVALID: as for tidegate_enforce().
int tidegate_enforce_descriptor(const tidegate_stage *stage,
                                uint32_t operation,
                                uint64_t bytes,
                                int descriptor,
                                tidegate_admission *admission);

// Forgets what is known of a descriptor: it is being closed, or its number stands for another file
// from now on.
void tidegate_forget(int descriptor);

// Says that a request is done and moved `bytes`; what it took from buckets for more than that goes
// back, so zero is right for one that failed. To be called once for each admission, by any thread.
//
// TIDEGATE_INVALID: a null pointer, or an admission that is not under way.
int tidegate_complete(tidegate_admission *admission, uint64_t bytes);

// Fills `tag` with the tag of an admission that is under way.
//
// TIDEGATE_INVALID: a null pointer, or an admission that is not under way.
int tidegate_admission_tag(const tidegate_admission *admission, tidegate_tag *tag);

// Enters a scope: from now on, requests of this thread are made in the context with this name
// ("flush", "compaction", ...), until tidegate_scope_leave() is called with what this returns.
// Scopes nest, and belong to the thread that entered them. Takes some 20 ns for a known name.
//
// Names are cut after 63 bytes, and a process has at most 255 of them; later ones, a null pointer
// and text that is not UTF-8 count as no context.
uint16_t tidegate_scope_enter(const char *name);

// Leaves a scope: the thread is again where it was when tidegate_scope_enter() returned
// `previous`.
void tidegate_scope_leave(uint16_t previous);

// The number that the context with this name has in this process, for comparing it with the one in
// a tag. Zero is no context; see tidegate_scope_enter() for names that count as none.
uint16_t tidegate_intern(const char *name);

// Makes a gate, or changes the one of that name and kind in place, keeping who waits there. A gate
// has no effect until a channel names it.
//
// Rules of the program's own hold until a controller connects, which replaces them. They belong to
// the process that opened the stage: in a child of fork() this function and the others here answer
// TIDEGATE_REFUSED.
//
// TIDEGATE_INVALID: a null pointer, an unknown kind.
// TIDEGATE_REFUSED: a field is out of range, or there are too many gates (255).
int tidegate_set_gate(const tidegate_stage *stage, const char *name, const tidegate_gate *gate);

// Makes a channel, or changes the one of that name, keeping its counters: a request that flows
// through it passes `gate_count` gates in the order of their names at `gates`. A channel has no
// effect until a rule, or the default, names it.
//
// tenant: whose its requests are, for their tags.
// urgency: one of TIDEGATE_URGENT to TIDEGATE_LOW.
//
// TIDEGATE_INVALID: a null pointer, an unknown urgency.
// TIDEGATE_REFUSED: a gate that there is not or that is named twice, more than 8 gates, more than
// 128 channels; or queue gates (concurrency, fair, priority) in an order that contradicts another
// channel's, for their requests would wait for each other for good.
int tidegate_set_channel(const tidegate_stage *stage,
                         const char *name,
                         uint16_t tenant,
                         uint32_t urgency,
                         const char *const *gates,
                         size_t gate_count);

// Sends requests that match no rule to this channel. Without a default they pass unhindered.
//
// TIDEGATE_INVALID: a null pointer.
// TIDEGATE_REFUSED: there is no such channel.
int tidegate_set_default(const tidegate_stage *stage, const char *channel);

// Adds a rule behind those that there are: requests that match it, and none before it, go to this
// channel.
//
// TIDEGATE_INVALID: a null pointer, an operation that there is not.
// TIDEGATE_REFUSED: there is no such channel, a pattern is longer than 255 bytes, or there are too
// many rules (256).
int tidegate_add_rule(const tidegate_stage *stage, const tidegate_rule *rule, const char *channel);

// Changes the rate of a bucket, in bytes or operations per second. Requests that wait there notice
// within a millisecond.
//
// TIDEGATE_INVALID: a null pointer.
// TIDEGATE_REFUSED: there is no such gate, or it is no bucket.
int tidegate_set_rate(const tidegate_stage *stage, const char *gate, uint64_t rate);

// Removes every rule, channel and gate. Requests pass unhindered, and those that wait go.
//
// TIDEGATE_INVALID: a null pointer.
// TIDEGATE_REFUSED: this process is a child of the one that opened the stage.
int tidegate_clear_rules(const tidegate_stage *stage);

// The largest result that tidegate_write() can have for so many bytes of content, whatever the
// gates.
size_t tidegate_bound(size_t length);

// Lets a request with content pass its gates, as tidegate_enforce() does, and gives what is to be
// written instead of the content: `*result` is the content itself if no gate of the channel
// transforms it, which copies nothing, else it is in `buffer`. The admission is to be completed
// with the length of the *content* when the result is written.
//
// associated: data that is not written but must be the same when the content is read, such as
// where it belongs, so that it cannot be moved elsewhere.
//
// There is nothing to complete after an error, and what the request took is given back:
// TIDEGATE_INVALID: a null or misaligned pointer, an unknown operation, a path that is not UTF-8.
// TIDEGATE_NO_KEY: a gate names a key that was not given when the stage was opened.
// TIDEGATE_TOO_SMALL: the result does not fit the buffer; `result->length` is its length, or use
// tidegate_bound(). The request has passed its gates, and will do so again.
// TIDEGATE_RULES_CHANGED: the rules changed meanwhile; make the request again. In a child of
// fork() it stays so, for only the parent has the new rules; the child may open its own stage.
// TIDEGATE_SYSTEM: there are no random numbers.
int tidegate_write(const tidegate_stage *stage,
                   const tidegate_request *request,
                   tidegate_bytes content,
                   tidegate_bytes associated,
                   tidegate_buffer buffer,
                   tidegate_bytes *result,
                   tidegate_admission *admission);

// Restores what tidegate_write() gave, after it was read: `*result` is the content itself if no
// gate of the request's channel transforms it, else it is in `buffer`, whose capacity is the most
// that is believed to belong there. The admission stays under way.
//
// TIDEGATE_INVALID: a null or misaligned pointer, an admission that is not under way.
// TIDEGATE_NO_KEY: a gate names a key that was not given when the stage was opened.
// TIDEGATE_NOT_AUTHENTIC: the content, or the associated data, is not what was written.
// TIDEGATE_TOO_SMALL: the result would be larger than the buffer.
// TIDEGATE_RULES_CHANGED: as for tidegate_write().
int tidegate_restore(const tidegate_stage *stage,
                     const tidegate_admission *admission,
                     tidegate_bytes content,
                     tidegate_bytes associated,
                     tidegate_buffer buffer,
                     tidegate_bytes *result);

// Opens the store of the data node that listens on the Unix socket at the path `at`, waits for its
// answer, and starts a thread that keeps the store's session slot while the program does
// something else. A null pointer for `settings` means the defaults. The first operation may take
// until the node's next period begins.
//
// A store is the process's that opened it: in a child of fork() all functions but
// tidegate_store_close() answer TIDEGATE_FORKED.
//
// TIDEGATE_INVALID: a null or misaligned pointer for `at` or `store`, text that is not UTF-8.
// TIDEGATE_UNREACHABLE: no data node listens there, or it does not answer in time.
// TIDEGATE_NOT_ADMITTED: it lets this process not in, or not for this tenant.
// TIDEGATE_OTHER_VERSION: it, or the store in its memory, is of another release.
// TIDEGATE_DAMAGED: there is no store in its memory, or a damaged one.
// TIDEGATE_SYSTEM: the memory cannot be mapped, or there is no thread.
int tidegate_store_open(const char *at,
                        const tidegate_store_settings *settings,
                        tidegate_store **store);

// Closes a store and gives its session slot back, which takes some milliseconds. Does nothing with
// a null pointer. In a child of fork() it leaves the parent's store as it is.
//
// TIDEGATE_INVALID: a misaligned pointer.
int tidegate_store_close(tidegate_store *store);

// Copies the value of a key into `buffer`. `*value` is its location there and its length; its
// pointer is null if the key has no value, which is no error, and not null if the value has no
// bytes.
//
// TIDEGATE_INVALID: a null or misaligned pointer. TIDEGATE_TOO_SMALL: the value does not fit;
// `value->length` is its length. A buffer of TIDEGATE_VALUE_MAX bytes is never too small.
// TIDEGATE_KEY_LENGTH: the key has no bytes, or more than TIDEGATE_KEY_MAX. TIDEGATE_DAMAGED: the
// store does not hold what was written to it. TIDEGATE_CONTENDED: others changed the key again and
// again; try again. TIDEGATE_LATE: it was not done within the store's timeout, as there were no
// tokens for it. TIDEGATE_UNREACHABLE: the same, and the data node is gone; or it does not let
// this client in any more. TIDEGATE_FORKED: another process has opened the store.
int tidegate_store_get(const tidegate_store *store,
                       tidegate_bytes key,
                       tidegate_buffer buffer,
                       tidegate_bytes *value);

// tidegate_store_get() for many keys, which are looked for together: their first operations go at
// once, and none waits for another (as far as the data node's window allows, and 64 at a time).
// Keys and buffers are the caller's; buffers must not overlap.
//
// Each lookup has its status. The function returns TIDEGATE_OK if all went well, else the status
// of one that did not, for which tidegate_error_detail() has words.
//
// TIDEGATE_INVALID: a null or misaligned pointer; nothing was looked for then.
int tidegate_store_get_many(const tidegate_store *store, tidegate_lookup *lookups, size_t count);

// Gives a key a value, whether it has one or not. Both are copied before it returns; who reads
// sees the old value or the new one.
//
// TIDEGATE_VALUE_LENGTH: the value has more than TIDEGATE_VALUE_MAX bytes, or key and value
// together more than TIDEGATE_ENTRY_MAX.
// TIDEGATE_FULL: the store has no room for it. TIDEGATE_THROTTLED: this client updates faster than
// the store's free space allows.
// TIDEGATE_LATE, TIDEGATE_UNREACHABLE: as for tidegate_store_get(); it may happen yet.
// Others as for tidegate_store_get().
int tidegate_store_put(const tidegate_store *store, tidegate_bytes key, tidegate_bytes value);

// Takes a key's value away. `*had` is 1 if there was one, else 0, which is no error either way;
// `had` may be null.
//
// TIDEGATE_LATE, TIDEGATE_UNREACHABLE: as for tidegate_store_get(); it may happen yet.
// Others as for tidegate_store_get().
int tidegate_store_delete(const tidegate_store *store, tidegate_bytes key, int *had);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TIDEGATE_H */
