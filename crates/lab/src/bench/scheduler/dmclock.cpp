// Ceph's dmclock as a contestant of `tidegate-lab bench scheduler`: see child.rs for what it is asked
// in numbers, and peer.rs for what in words.
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "dmclock_server.h"
#include "run_every.cc"

namespace dmc = crimson::dmclock;
using Clock = std::chrono::steady_clock;

struct Request {};
using Queue = dmc::PullPriorityQueue<unsigned, Request>;

static const unsigned depth = 4;
static const dmc::ReqParams nothing_elsewhere;

static long resident() {
    long size = 0, pages = 0;
    std::ifstream("/proc/self/statm") >> size >> pages;
    return pages * sysconf(_SC_PAGESIZE);
}

// A node in virtual time, as in bed.rs.
struct Bed {
    std::vector<dmc::ClientInfo> streams;
    std::vector<unsigned> waiting;
    std::unique_ptr<Queue> queue;
    // Not zero, which stands for no time there.
    double now = 1000;

    void add(double reservation, double weight, double limit) {
        streams.emplace_back(reservation, weight, limit);
        waiting.push_back(0);
    }
    void open() {
        queue.reset(new Queue([this](const unsigned &stream) { return &streams[stream]; },
                              dmc::AtLimit::Wait));
    }
    void push(unsigned stream) {
        queue->add_request_time(Request{}, stream, nothing_elsewhere, now);
    }
    void fill(unsigned stream) {
        for (; waiting[stream] < depth; waiting[stream]++) push(stream);
    }
    // One request served, and the same one back: nothing is allocated for it.
    void pair(double step) {
        now += step;
        auto next = queue->pull_request(now);
        if (!next.is_retn()) return;
        auto &served = next.get_retn();
        queue->add_request(std::move(served.request), served.client, nothing_elsewhere, now);
    }
    std::vector<long> serve(double length, double rate, const std::vector<unsigned> &active) {
        const double end = now + length;
        std::vector<long> served(streams.size());
        for (unsigned stream : active) fill(stream);
        while (now < end) {
            auto next = queue->pull_request(now);
            if (!next.is_retn()) {
                now = next.is_future() ? std::min(std::max(next.getTime(), now + 1e-6), end) : end;
                continue;
            }
            const unsigned stream = next.get_retn().client;
            served[stream]++;
            waiting[stream]--;
            now += 1 / rate;
            if (std::find(active.begin(), active.end(), stream) != active.end()) fill(stream);
        }
        return served;
    }
};

// How often the thread was taken off its core, and how long it waited to get back.
static std::pair<long, long> standing() {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    long ran = 0, delayed = 0;
    std::ifstream("/proc/thread-self/schedstat") >> ran >> delayed;
    return {usage.ru_nivcsw, delayed};
}

// Nanoseconds per call, or less than none if something disturbed the window.
static double window(long length, long core, int block, const std::function<void()> &call) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    sched_setaffinity(0, sizeof set, &set);
    for (int i = 0; i < block; i++) call();
    const auto before = standing();
    const auto begin = Clock::now();
    double calls = 0, took = 0;
    for (; took < length; calls += block) {
        for (int i = 0; i < block; i++) call();
        took = std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
    }
    const auto after = standing();
    const bool disturbed = after.first != before.first || after.second - before.second > took / 100;
    return disturbed ? -1 : took / calls;
}

// Looks of a queue of the pushing kind while the only request that waits is held back by a limit
// of two per second, in a second of real time; those that served one are not counted.
static long looks_in_vain() {
    std::atomic<long> looks(0), served(0);
    const dmc::ClientInfo limited(0, 1, 2);
    {
        dmc::PushPriorityQueue<unsigned, Request> queue(
            [&](const unsigned &) { return &limited; }, [&] { return ++looks, true; },
            [&](const unsigned &, std::unique_ptr<Request>, dmc::PhaseType, uint64_t) { served++; },
            dmc::AtLimit::Wait);
        for (int i = 0; i < 8; i++) queue.add_request(Request{}, 0, nothing_elsewhere);
        looks = served = 0;
        std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    return std::max(0L, looks - 2 * served);
}

int main() {
    std::unique_ptr<Bed> bed;
    std::function<void()> call;
    int block = 64;
    for (std::string line; std::getline(std::cin, line); std::fflush(stdout)) {
        std::istringstream words(line);
        std::string verb;
        words >> verb;
        if (verb == "streams") {
            bed.reset(new Bed);
            for (double r, w, l; words >> r >> w >> l;) bed->add(r, w, l);
            bed->open();
            std::puts("ok");
        } else if (verb == "serve") {
            double length = 0, rate = 0;
            std::vector<unsigned> active;
            words >> length >> rate;
            for (unsigned stream; words >> stream;) active.push_back(stream);
            for (long count : bed->serve(length, rate, active)) std::printf("%ld ", count);
            std::puts("");
        } else if (verb == "pairs") {
            for (unsigned stream = 0; stream < bed->streams.size(); stream++) bed->fill(stream);
            double step = 0;
            words >> step;
            call = [&bed, step] { bed->pair(step); };
            std::puts("ok");
        } else if (verb == "joins") {
            // Each of so many has a request waiting; every call adds one more to them.
            unsigned count = 0;
            words >> count;
            bed.reset(new Bed);
            bed->add(0, 1, 0);
            bed->queue.reset(new Queue([&bed](const unsigned &) { return &bed->streams[0]; },
                                       dmc::AtLimit::Wait));
            const long before = resident();
            for (unsigned stream = 0; stream < count; stream++) bed->push(stream);
            std::printf("%.1f\n", double(resident() - before) / count);
            call = [&bed, next = count]() mutable { bed->push(next++); };
            block = 1;
        } else if (verb == "looks") {
            std::printf("%ld\n", looks_in_vain());
        } else {
            long core = 0;
            words >> core;
            const double took = window(std::stol(verb), core, block, call);
            if (took < 0) {
                std::puts("-");
            } else {
                std::printf("%.3f\n", took);
            }
        }
    }
}
