/* Tidegate: the gates of a stage, and a data node's store, in C++17. Header only, over tidegate.h;
 * the guides are docs/src/capi.md and docs/src/data-nodes.md.
 *
 * Without exceptions (-fno-exceptions, or TIDEGATE_NO_EXCEPTIONS defined) everything here but the
 * throwing constructors of Stage and Store is there. Nothing else throws. */

#ifndef TIDEGATE_HPP
#define TIDEGATE_HPP

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>

#include "tidegate.h"

#if defined(__cpp_exceptions) && !defined(TIDEGATE_NO_EXCEPTIONS)
#define TIDEGATE_HAS_EXCEPTIONS 1
#include <stdexcept>
#include <string>
#endif

namespace tidegate {

/* How a call went: one of TIDEGATE_OK to TIDEGATE_THROTTLED. True if it went well. */
class [[nodiscard]] Status {
public:
    constexpr Status(int code) noexcept : code_(code) {}
    constexpr explicit operator bool() const noexcept { return code_ == TIDEGATE_OK; }
    constexpr int code() const noexcept { return code_; }
    const char *text() const noexcept { return tidegate_strerror(code_); }
    /* What exactly went wrong when a call last failed on this thread. */
    static const char *detail() noexcept { return tidegate_error_detail(); }

private:
    int code_;
};

#ifdef TIDEGATE_HAS_EXCEPTIONS
/* What the constructors of Stage and Store throw. */
class Error : public std::runtime_error {
public:
    explicit Error(Status status)
        : std::runtime_error(std::string(status.text()) + ": " + Status::detail()),
          status_(status) {}
    Status status() const noexcept { return status_; }

private:
    Status status_;
};
#endif

/* Settings, a gate, a rule or a request, with its size set and everything else zero. */
template <typename T> T sized() noexcept {
    T value{};
    value.size = sizeof(T);
    return value;
}

/* A stretch of code whose requests have one context. Scopes nest, and stay on their thread. */
class [[nodiscard]] Scope {
public:
    explicit Scope(const char *name) noexcept : previous_(tidegate_scope_enter(name)) {}
    ~Scope() { tidegate_scope_leave(previous_); }
    Scope(const Scope &) = delete;
    Scope &operator=(const Scope &) = delete;

private:
    std::uint16_t previous_;
};

/* A request that may go. If it is not completed before its end, it counts as done in full. */
class [[nodiscard]] Admission {
public:
    Admission(Admission &&other) noexcept
        : status_(other.status_), bytes_(other.bytes_), raw_(other.raw_) {
        other.status_ = TIDEGATE_INVALID;
    }
    Admission &operator=(Admission &&other) noexcept {
        std::swap(status_, other.status_);
        std::swap(bytes_, other.bytes_);
        std::swap(raw_, other.raw_);
        return *this;
    }
    ~Admission() { (void)complete(bytes_); }

    /* TIDEGATE_OK while it is under way. A request that was not admitted is not limited either: the
     * caller decides whether it is made. */
    Status status() const noexcept { return status_; }

    /* Says that the request is done and moved `bytes`. */
    Status complete(std::uint64_t bytes) noexcept {
        if (!status_) {
            return status_;
        }
        status_ = TIDEGATE_INVALID;
        return tidegate_complete(&raw_, bytes);
    }

    /* Its tag; all zero if it is not under way. */
    tidegate_tag tag() const noexcept {
        tidegate_tag tag{};
        (void)tidegate_admission_tag(&raw_, &tag);
        return tag;
    }

    /* For tidegate_restore(). */
    const tidegate_admission *raw() const noexcept { return &raw_; }

private:
    friend class Stage;
    Admission() noexcept = default;

    Status status_ = TIDEGATE_INVALID;
    std::uint64_t bytes_ = 0;
    tidegate_admission raw_{};
};

/* A stage. It must outlive its admissions, and may be used by any number of threads. */
class Stage {
public:
    /* No stage yet; for open(). */
    Stage() noexcept = default;
    Stage(Stage &&other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
    Stage &operator=(Stage &&other) noexcept {
        std::swap(raw_, other.raw_);
        return *this;
    }
    ~Stage() { (void)tidegate_stage_close(raw_); }

#ifdef TIDEGATE_HAS_EXCEPTIONS
    explicit Stage(const tidegate_settings &settings) {
        if (const Status status = open(settings, *this); !status) {
            throw Error(status);
        }
    }
#endif

    /* Opens a stage in the place of the one in `stage`, which is closed. */
    static Status open(const tidegate_settings &settings, Stage &stage) noexcept {
        Stage opened;
        const Status status = tidegate_stage_open(&settings, &opened.raw_);
        if (status) {
            stage = std::move(opened);
        }
        return status;
    }

    /* Whether there are rules; if not, the status and its detail say why. Does not wait. */
    Status ready() const noexcept { return tidegate_stage_ready(raw_); }

    /* Lets a request pass its gates, which may take a while. */
    Admission enforce(std::uint32_t operation, std::uint64_t bytes,
                      const char *path = nullptr) const noexcept {
        Admission admission;
        admission.bytes_ = bytes;
        admission.status_ = tidegate_enforce(raw_, operation, bytes, path, &admission.raw_);
        return admission;
    }

    /* The same for an open file. */
    Admission enforce_descriptor(std::uint32_t operation, std::uint64_t bytes,
                                 int descriptor) const noexcept {
        Admission admission;
        admission.bytes_ = bytes;
        admission.status_ =
            tidegate_enforce_descriptor(raw_, operation, bytes, descriptor, &admission.raw_);
        return admission;
    }

    /* Lets a request with content pass its gates; see tidegate_write(). */
    Admission write(const tidegate_request &request, tidegate_bytes content,
                    tidegate_bytes associated, tidegate_buffer buffer,
                    tidegate_bytes &result) const noexcept {
        Admission admission;
        admission.bytes_ = content.length;
        admission.status_ = tidegate_write(raw_, &request, content, associated, buffer, &result,
                                           &admission.raw_);
        return admission;
    }

    /* Restores what write() gave; see tidegate_restore(). */
    Status restore(const Admission &admission, tidegate_bytes content, tidegate_bytes associated,
                   tidegate_buffer buffer, tidegate_bytes &result) const noexcept {
        return tidegate_restore(raw_, admission.raw(), content, associated, buffer, &result);
    }

    Status set_gate(const char *name, const tidegate_gate &gate) const noexcept {
        return tidegate_set_gate(raw_, name, &gate);
    }
    Status set_channel(const char *name, std::uint16_t tenant, std::uint32_t urgency,
                       std::initializer_list<const char *> gates) const noexcept {
        return tidegate_set_channel(raw_, name, tenant, urgency, gates.begin(), gates.size());
    }
    Status set_default(const char *channel) const noexcept {
        return tidegate_set_default(raw_, channel);
    }
    Status add_rule(const tidegate_rule &rule, const char *channel) const noexcept {
        return tidegate_add_rule(raw_, &rule, channel);
    }
    Status set_rate(const char *gate, std::uint64_t rate) const noexcept {
        return tidegate_set_rate(raw_, gate, rate);
    }
    Status clear_rules() const noexcept { return tidegate_clear_rules(raw_); }

    /* Fills at most `capacity` counters and says in `count` how many there are. */
    Status collect(tidegate_counters *counters, std::size_t capacity,
                   std::size_t &count) const noexcept {
        return tidegate_collect(raw_, counters, capacity, &count);
    }

    /* For functions of tidegate.h; still this object's. */
    tidegate_stage *raw() const noexcept { return raw_; }

private:
    tidegate_stage *raw_ = nullptr;
};

/* A data node's store. It may be used by any number of threads. */
class Store {
public:
    /* No store yet; for open(). */
    Store() noexcept = default;
    Store(Store &&other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
    Store &operator=(Store &&other) noexcept {
        std::swap(raw_, other.raw_);
        return *this;
    }
    ~Store() { (void)tidegate_store_close(raw_); }

#ifdef TIDEGATE_HAS_EXCEPTIONS
    Store(const char *at, const tidegate_store_settings &settings) {
        if (const Status status = open(at, settings, *this); !status) {
            throw Error(status);
        }
    }
#endif

    /* Opens a store in the place of the one in `store`, which is closed. */
    static Status open(const char *at, const tidegate_store_settings &settings,
                       Store &store) noexcept {
        Store opened;
        const Status status = tidegate_store_open(at, &settings, &opened.raw_);
        if (status) {
            store = std::move(opened);
        }
        return status;
    }

    /* Copies a key's value into the buffer; value.data is null if it has none. */
    Status get(tidegate_bytes key, tidegate_buffer buffer, tidegate_bytes &value) const noexcept {
        return tidegate_store_get(raw_, key, buffer, &value);
    }
    Status get_many(tidegate_lookup *lookups, std::size_t count) const noexcept {
        return tidegate_store_get_many(raw_, lookups, count);
    }
    Status put(tidegate_bytes key, tidegate_bytes value) const noexcept {
        return tidegate_store_put(raw_, key, value);
    }
    /* Takes a key's value away, and says in `had` whether there was one. */
    Status remove(tidegate_bytes key, bool &had) const noexcept {
        int found = 0;
        const Status status = tidegate_store_delete(raw_, key, &found);
        had = found != 0;
        return status;
    }

    /* For functions of tidegate.h; still this object's. */
    tidegate_store *raw() const noexcept { return raw_; }

private:
    tidegate_store *raw_ = nullptr;
};

}  // namespace tidegate

#endif  /* TIDEGATE_HPP */
